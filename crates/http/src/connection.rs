//! Serves the requests of one client one after another, with a time limit for each.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{Duration, Instant, sleep_until, timeout_at};

use crate::answer::{Answer, Head, Method, Site};
use crate::limits;

/// Time limit for a client's present request.
pub(crate) struct Allowance {
    /// Start of the present limit.
    since: Cell<Instant>,
    /// End of the present limit, when the connection is ended; `None` while the client waits for an answer.
    until: Cell<Option<Instant>>,
}

impl Allowance {
    fn new(time: Duration) -> Self {
        let now = Instant::now();
        Self {
            since: Cell::new(now),
            until: Cell::new(Some(now + time)),
        }
    }

    fn give(&self, time: Duration) {
        let now = Instant::now();
        self.since.set(now);
        self.until.set(Some(now + time));
    }
}

struct Open {
    allowance: Rc<Allowance>,
    /// Handle that ends the connection; `None` until the connection is served.
    ended_by: Option<AbortHandle>,
}

/// The open connections, numbered in the order in which clients connected.
#[derive(Default)]
pub(crate) struct Connections {
    open: RefCell<BTreeMap<u64, Open>>,
    next: Cell<u64>,
}

impl Connections {
    /// Adds a connection. If there is no room, the connection that has been silent longest is ended.
    pub(crate) async fn enter(&self) -> (u64, Rc<Allowance>) {
        while self.open.borrow().len() >= limits::CONNECTIONS {
            let longest = self.longest_silent();
            let ready = longest.map_or_else(Instant::now, |(_, since)| since) + limits::SILENT_TIME;
            if ready > Instant::now() {
                sleep_until(ready).await;
            } else if let Some((number, _)) = longest {
                self.end(number);
            }
        }
        let number = self.next.replace(self.next.get() + 1);
        let allowance = Rc::new(Allowance::new(limits::HEAD_TIME));
        let open = Open {
            allowance: allowance.clone(),
            ended_by: None,
        };
        self.open.borrow_mut().insert(number, open);
        (number, allowance)
    }

    /// Sets the handle that ends a connection.
    pub(crate) fn ended_by(&self, number: u64, handle: AbortHandle) {
        if let Some(open) = self.open.borrow_mut().get_mut(&number) {
            open.ended_by = Some(handle);
        }
    }

    pub(crate) fn leave(&self, number: u64) {
        self.open.borrow_mut().remove(&number);
    }

    /// The connection whose client has been silent longest, and the start of its silence. Clients that wait for an
    /// answer are not silent.
    fn longest_silent(&self) -> Option<(u64, Instant)> {
        let open = self.open.borrow();
        let silent = open
            .iter()
            .filter(|(_, open)| open.allowance.until.get().is_some());
        let since = silent.map(|(number, open)| (*number, open.allowance.since.get()));
        since.min_by_key(|(_, since)| *since)
    }

    /// Ends the connection that has been silent longest, because the kernel has no descriptor left.
    pub(crate) fn drop_longest_silent(&self) {
        if let Some((number, _)) = self.longest_silent() {
            self.end(number);
        }
    }

    fn end(&self, number: u64) {
        let ended = self.open.borrow_mut().remove(&number);
        if let Some(handle) = ended.and_then(|open| open.ended_by) {
            handle.abort();
        }
    }
}

/// Answers the requests of one client until the client leaves or exceeds a time limit.
pub(crate) async fn serve_connection<Stream>(
    stream: Stream,
    site: Arc<dyn Site>,
    allowance: Rc<Allowance>,
) where
    Stream: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    let service = service_fn(|request| exchange(request, site.clone(), allowance.clone()));
    let mut protocol = http1::Builder::new();
    protocol
        .max_buf_size(limits::HEAD_BYTES)
        .max_headers(limits::HEADERS)
        .half_close(true);
    let mut talk = pin!(protocol.serve_connection(stream, service));
    loop {
        // While the server works on an answer, the client has no time limit; the limit is checked again after a second.
        let until = allowance.until.get();
        let look = until.unwrap_or_else(|| Instant::now() + Duration::from_secs(1));
        // Errors are ignored: the client has its answer, or has gone.
        if timeout_at(look, &mut talk).await.is_ok() {
            return;
        }
        if allowance
            .until
            .get()
            .is_some_and(|until| until <= Instant::now())
        {
            return;
        }
    }
}

async fn exchange(
    request: Request<Incoming>,
    site: Arc<dyn Site>,
    allowance: Rc<Allowance>,
) -> Result<Response<Pieces>, Infallible> {
    allowance.give(limits::BODY_TIME);
    let policy = site.policy();
    let answer = find(request, site, &allowance)
        .await
        .unwrap_or_else(|refused| refused);
    allowance.give(limits::IDLE_TIME);
    Ok(response(answer, policy, allowance))
}

async fn find(
    request: Request<Incoming>,
    site: Arc<dyn Site>,
    allowance: &Allowance,
) -> Result<Answer, Answer> {
    let (head, body) = request.into_parts();
    let method = match head.method {
        hyper::Method::GET | hyper::Method::HEAD => Method::Get,
        hyper::Method::POST => Method::Post,
        _ => return Err(Answer::error(405, "GET or POST\n")),
    };
    if head.uri.authority().is_some() {
        return Err(Answer::error(400, "nearpage is no proxy\n"));
    }
    let target = head
        .uri
        .path_and_query()
        .map_or("", |target| target.as_str());
    let (host, origin) = (
        one(&head.headers, header::HOST)?,
        one(&head.headers, header::ORIGIN)?,
    );
    let inside = site
        .admit(&Head {
            method,
            target,
            host,
            origin,
        })?
        .to_owned();
    let posted = match method {
        Method::Get => None,
        Method::Post => Some(read(body).await?),
    };
    allowance.until.set(None);
    let found = spawn_blocking(move || site.answer(&inside, posted.as_deref())).await;
    found.map_err(|_| Answer::error(500, "the answer was not found\n"))
}

/// Text of a header that may appear only once.
fn one(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, Answer> {
    let mut values = headers.get_all(&name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) if value.to_str().is_ok() => Ok(value.to_str().ok()),
        _ => Err(Answer::error(
            400,
            format!("{name}: expected one, as plain text\n"),
        )),
    }
}

async fn read(body: Incoming) -> Result<Vec<u8>, Answer> {
    let too_large = || {
        Answer::error(
            413,
            format!("at most {} bytes may be posted\n", limits::BODY_BYTES),
        )
    };
    // A client that announces too many bytes is refused at once.
    if body.size_hint().lower() > limits::BODY_BYTES as u64 {
        return Err(too_large());
    }
    match Limited::new(body, limits::BODY_BYTES).collect().await {
        Ok(whole) => Ok(whole.to_bytes().to_vec()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Err(error) => Err(Answer::error(400, format!("{error}\n"))),
    }
}

fn response(answer: Answer, policy: &'static str, allowance: Rc<Allowance>) -> Response<Pieces> {
    let mut response = Response::new(Pieces {
        rest: answer.body,
        allowance,
    });
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in [
        (header::CONTENT_TYPE, answer.content_type),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    if answer.status == 405 {
        response
            .headers_mut()
            .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
    }
    response
}

/// An answer's body in pieces. A client that has taken a piece gets time for the next.
struct Pieces {
    rest: Bytes,
    allowance: Rc<Allowance>,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        self.allowance.give(limits::IDLE_TIME);
        let bytes = self.rest.len().min(limits::PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
