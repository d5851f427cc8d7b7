//! Requests to a site, and answers.

use bytes::Bytes;

/// Accepted methods of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET, or HEAD, whose answer has no body.
    Get,
    /// POST.
    Post,
}

/// A request without its body.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// GET or POST.
    pub method: Method,
    /// Path and parameters as sent, such as `/metrics?x=1`.
    pub target: &'a str,
    /// `Host` header: the name by which the client calls this server; `None` without the header.
    pub host: Option<&'a str>,
    /// `Origin` header: the site whose page makes the request; `None` without the header.
    pub origin: Option<&'a str>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Media type of `body`.
    pub content_type: &'static str,
    /// Content.
    pub body: Bytes,
}

impl Answer {
    /// An answer with a line of text about an error.
    pub fn error(status: u16, what: impl Into<String>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: Bytes::from(what.into()),
        }
    }
}

/// A site that is served.
pub trait Site: Send + Sync + 'static {
    /// `Content-Security-Policy` of all answers, which limits what a browser lets the site's pages do.
    fn policy(&self) -> &'static str {
        "default-src 'none'"
    }

    /// Decides whether a request is admitted, and returns the part of the target that [`Site::answer`] gets. The method
    /// is called on the thread that serves all connections, also for strangers, so it must be quick and never wait.
    ///
    /// # Errors
    /// The answer to a request that is not admitted.
    fn admit<'a>(&self, head: &Head<'a>) -> Result<&'a str, Answer>;

    /// Answers an admitted request: `target` is the result of [`Site::admit`], `body` the posted body. The method may
    /// be slow.
    fn answer(&self, target: &str, body: Option<&[u8]>) -> Answer;
}
