//! What a site is asked, and what it says.

use bytes::Bytes;

/// The methods that a site may be asked with.
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
    /// Path and parameters, as they were sent: `/metrics?x=1`.
    pub target: &'a str,
    /// By what name the client calls this server; none where it sent none.
    pub host: Option<&'a str>,
    /// Which site's page asks; none where no page does.
    pub origin: Option<&'a str>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// As HTTP has it.
    pub status: u16,
    /// What `body` is.
    pub content_type: &'static str,
    /// Content.
    pub body: Bytes,
}

impl Answer {
    /// A line that says what is wrong.
    pub fn error(status: u16, what: impl Into<String>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: Bytes::from(what.into()),
        }
    }
}

/// What is served.
pub trait Site: Send + Sync + 'static {
    /// What a browser lets the site's pages do (the `Content-Security-Policy` of all answers).
    fn policy(&self) -> &'static str {
        "default-src 'none'"
    }

    /// Decides whether a request is let in, and what [`Site::answer`] gets of it. Called on the thread that serves all
    /// connections, for strangers too: it must not wait nor take long.
    ///
    /// # Errors
    /// The answer to a request that is not let in.
    fn admit<'a>(&self, head: &Head<'a>) -> Result<&'a str, Answer>;

    /// Answers one that was let in: what [`Site::admit`] returned, and what was posted. May take its time.
    fn answer(&self, target: &str, body: Option<&[u8]>) -> Answer;
}
