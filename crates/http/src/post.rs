//! Posts to a server without TLS, on this host or in a trusted network.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Maximum size of an answer, in bytes.
const ANSWER_BYTES: usize = 64 << 10;

/// Address to post to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    uri: Uri,
    /// Host name for look-up; an IPv6 address without brackets.
    host: String,
    port: u16,
}

/// The server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The HTTP status.
    pub status: u16,
    /// Time after which the server wants the next request.
    pub retry_after: Option<Duration>,
    /// Content.
    pub body: Bytes,
}

impl Endpoint {
    /// Parses a URL; `port` and `path` are the defaults.
    ///
    /// # Errors
    /// Text about the mistake in the address.
    pub fn parse(url: &str, port: u16, path: &str) -> Result<Self, String> {
        let form = || format!("expected http://HOST:{port}");
        let uri: Uri = url.parse().map_err(|_| form())?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(
                    "nearpage has no TLS; post to a collector on this host by http://, which forwards by TLS"
                        .to_owned(),
                );
            }
            _ => return Err(form()),
        }
        let authority = uri.authority().ok_or_else(form)?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(format!("{}, without a user or parameters", form()));
        }
        let has_port = authority.as_str().len() > authority.host().len();
        let port = match uri.port_u16() {
            Some(port) => port,
            None if has_port => return Err(form()),
            None => port,
        };
        let path = match uri.path() {
            "" | "/" => path,
            path => path,
        };
        Ok(Self {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            uri: format!("http://{}:{port}{path}", authority.host())
                .parse()
                .map_err(|_| form())?,
            port,
        })
    }

    /// Posts a body; `time` limits the whole exchange.
    ///
    /// # Errors
    /// There is no connection, no answer in time, or the answer is no HTTP or too long.
    pub fn post(
        &self,
        content_type: &'static str,
        body: Bytes,
        time: Duration,
    ) -> io::Result<Posted> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let posted = runtime.block_on(async {
            let posting = timeout(time, self.exchange(content_type, body));
            posting.await.unwrap_or_else(|_| {
                let words = format!("no answer within {} s", time.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, words))
            })
        });
        // The runtime is not waited for, because it may still be looking up a name.
        runtime.shutdown_background();
        posted
    }

    async fn exchange(&self, content_type: &'static str, body: Bytes) -> io::Result<Posted> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let connected = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connected.map_err(io::Error::other)?;
        let mut request = Request::post(self.uri.path()).body(Full::new(body));
        if let Ok(request) = &mut request {
            let headers = request.headers_mut();
            let host = self
                .uri
                .authority()
                .map_or("", |authority| authority.as_str());
            let host = HeaderValue::from_str(host).map_err(io::Error::other)?;
            headers.insert(header::HOST, host);
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            let agent = concat!("nearpage/", env!("CARGO_PKG_VERSION"));
            headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let request = request.map_err(io::Error::other)?;
        let answering = async {
            let answer = sender
                .send_request(request)
                .await
                .map_err(io::Error::other)?;
            let status = answer.status().as_u16();
            let retry_after = answer.headers().get(header::RETRY_AFTER);
            let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
            let body = Limited::new(answer.into_body(), ANSWER_BYTES);
            let body = body.collect().await.map_err(io::Error::other)?;
            Ok(Posted {
                status,
                retry_after: retry_after.map(Duration::from_secs),
                body: body.to_bytes(),
            })
        };
        let mut connection = std::pin::pin!(connection);
        let mut answering = std::pin::pin!(answering);
        // The connection is polled only as long as the answer is awaited.
        let mut is_over = false;
        std::future::poll_fn(|context| {
            if !is_over {
                is_over = connection.as_mut().poll(context).is_ready();
            }
            answering.as_mut().poll(context)
        })
        .await
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.uri.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    fn endpoint(url: &str) -> Result<String, String> {
        Endpoint::parse(url, 4318, "/v1").map(|endpoint| endpoint.to_string())
    }

    #[test]
    fn an_address_gets_the_port_and_path_that_it_lacks() {
        for (url, whole) in [
            ("http://localhost", "http://localhost:4318/v1"),
            ("http://localhost/", "http://localhost:4318/v1"),
            ("http://[::1]:80", "http://[::1]:80/v1"),
            ("http://n1:9/other", "http://n1:9/other"),
        ] {
            assert_eq!(endpoint(url).as_deref(), Ok(whole));
        }
        let endpoint = Endpoint::parse("http://[::1]", 4318, "/").unwrap();
        assert_eq!(endpoint.host, "::1");
    }

    #[test]
    fn invalid_addresses_are_refused_with_the_expected_form() {
        for url in [
            "",
            "localhost",
            "localhost:4318",
            "ftp://localhost",
            "http://",
            "http://a b",
            "http://localhost:99999",
            "http://localhost:",
            "http://user@localhost",
            "http://localhost/?x",
        ] {
            let refused = endpoint(url).expect_err(url);
            assert!(
                refused.starts_with("expected http://HOST:4318"),
                "{url}: {refused}"
            );
        }
        assert!(
            endpoint("https://localhost")
                .unwrap_err()
                .contains("no TLS")
        );
    }

    /// Request that a server with this answer gets, and the client's result.
    fn answered(answer: &'static [u8]) -> (String, io::Result<Posted>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut got = Vec::new();
            let mut piece = [0; 1024];
            while !got.ends_with(b"posted") {
                let count = stream.read(&mut piece).expect("bytes");
                assert!(count > 0, "the client hung up");
                got.extend_from_slice(&piece[..count]);
            }
            // A client that has read enough closes the connection, which is no error here.
            let _ = stream.write_all(answer);
            String::from_utf8(got).expect("text")
        });
        let endpoint = Endpoint::parse(&url, 4318, "/v1").expect("an address");
        let body = Bytes::from_static(b"posted");
        let posted = endpoint.post("text/plain", body, Duration::from_secs(60));
        (server.join().expect("it answered"), posted)
    }

    #[test]
    fn posted_bodies_arrive_and_answers_come_back() {
        let (got, posted) = answered(
            b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\nno and more than that",
        );
        let posted = posted.expect("answered");
        assert_eq!((posted.status, &posted.body[..]), (503, &b"no"[..]));
        assert_eq!(posted.retry_after, Some(Duration::from_secs(7)));
        for line in [
            "POST /v1 HTTP/1.1\r\n",
            "content-type: text/plain\r\n",
            "host: 127.0.0.1:",
        ] {
            assert!(got.contains(line), "{got}");
        }
    }

    #[test]
    fn a_server_that_speaks_no_http_or_too_much_is_an_error() {
        answered(b"SSH-2.0-OpenSSH\r\n\r\n").1.expect_err("no HTTP");
        answered(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nno")
            .1
            .expect_err("cut short");
        static LONG: [u8; ANSWER_BYTES + 1024] = {
            let mut long = [b'x'; ANSWER_BYTES + 1024];
            let head = b"HTTP/1.1 200 OK\r\n\r\n";
            let mut at = 0;
            while at < head.len() {
                long[at] = head[at];
                at += 1;
            }
            long
        };
        answered(&LONG).1.expect_err("too long");
    }
}
