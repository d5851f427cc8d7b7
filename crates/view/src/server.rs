//! The local web server: this machine only, nobody who does not know the token, no other origin.

use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;

use tiny_http::{Header, Method, Request, Response, Server};

use crate::answer::{Answer, Question};
use crate::{Error, Session, page};

/// Requests answered at once.
const WORKERS: usize = 4;
/// Bytes of a posted body, at most.
const BODY_MAX: u64 = 1 << 20;

/// A server that listens.
pub struct Listening {
    server: Arc<Server>,
    port: u16,
    token: String,
}

impl Listening {
    /// Listens on a port of the loopback address; 0 takes a free one.
    ///
    /// # Errors
    /// [`Error::PortInUse`], [`Error::Listen`], [`Error::Random`], [`Error::NoPage`].
    pub fn new(port: u16) -> Result<Self, Error> {
        if page::HTML.is_empty() {
            return Err(Error::NoPage);
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = std::net::TcpListener::bind(address).map_err(|source| {
            match source.kind() == std::io::ErrorKind::AddrInUse {
                true => Error::PortInUse { port },
                false => Error::Listen { port, source },
            }
        })?;
        let found = listener.local_addr();
        let port = found
            .map_err(|source| Error::Listen { port, source })?
            .port();
        let server = Server::from_listener(listener, None).map_err(|error| Error::Listen {
            port,
            source: std::io::Error::other(error.to_string()),
        })?;
        Ok(Self {
            server: Arc::new(server),
            port,
            token: token()?,
        })
    }

    /// The address to open: whoever knows it may look.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.token)
    }

    /// Answers until the process ends.
    pub fn serve(self, session: Arc<Session>) {
        let Self {
            server,
            port,
            token,
        } = self;
        let gate = Arc::new(Gate { port, token });
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let (server, session, gate) = (server.clone(), session.clone(), gate.clone());
                thread::spawn(move || {
                    while let Ok(request) = server.recv() {
                        respond(request, &session, &gate);
                    }
                })
            })
            .collect();
        for worker in workers {
            let _ = worker.join();
        }
    }
}

/// 128 random bits.
fn token() -> Result<String, Error> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::Random)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Who is let in.
struct Gate {
    port: u16,
    token: String,
}

impl Gate {
    /// The path behind the token, or why not.
    fn open<'a>(
        &self,
        target: &'a str,
        host: Option<&str>,
        origin: Option<&str>,
    ) -> Result<&'a str, Answer> {
        let hosts = ["127.0.0.1", "localhost"].map(|name| format!("{name}:{}", self.port));
        // Another name for this address is how a foreign page would get around the browser's rules.
        if !host.is_some_and(|host| hosts.iter().any(|own| own == host)) {
            return Err(Answer::error(
                403,
                "nearpage answers to 127.0.0.1 and localhost only\n",
            ));
        }
        let own = |origin: &str| hosts.iter().any(|host| origin == format!("http://{host}"));
        if !origin.is_none_or(own) {
            return Err(Answer::error(
                403,
                "nearpage answers to its own page only\n",
            ));
        }
        let inside = target
            .strip_prefix('/')
            .and_then(|target| target.split_once('/'))
            .filter(|(token, _)| same(token.as_bytes(), self.token.as_bytes()))
            .map(|(_, inside)| inside);
        inside.ok_or_else(|| {
            Answer::error(
                403,
                "wrong or missing token: open the address that `nearpage view` printed\n",
            )
        })
    }
}

/// Are they the same? Takes as long whether or not they are.
fn same(left: &[u8], right: &[u8]) -> bool {
    let differ = left
        .iter()
        .zip(right)
        .fold(0, |differ, (a, b)| differ | (a ^ b));
    left.len() == right.len() && differ == 0
}

fn respond(mut request: Request, session: &Session, gate: &Gate) {
    let header = |name: &str| {
        let mut headers = request.headers().iter();
        let found =
            headers.find(|header| header.field.as_str().as_str().eq_ignore_ascii_case(name));
        found.map(|header| header.value.as_str().to_owned())
    };
    let (host, origin) = (header("Host"), header("Origin"));
    let target = request.url().to_owned();
    let answer = gate
        .open(&target, host.as_deref(), origin.as_deref())
        .and_then(|inside| match request.method() {
            Method::Get | Method::Head => Ok((inside, None)),
            Method::Post if origin.is_some() => {
                let mut body = String::new();
                let read = request.as_reader().take(BODY_MAX).read_to_string(&mut body);
                match read {
                    Ok(_) => Ok((inside, Some(body))),
                    Err(error) => Err(Answer::error(400, format!("{error}\n"))),
                }
            }
            Method::Post => Err(Answer::error(
                403,
                "nearpage answers to its own page only\n",
            )),
            _ => Err(Answer::error(405, "GET or POST\n")),
        })
        .map_or_else(
            |refused| refused,
            |(inside, body)| match page::file(inside) {
                Some(file) => file,
                None => session.answer(&Question {
                    body,
                    ..Question::parse(inside)
                }),
            },
        );
    let mut response = Response::from_data(answer.body).with_status_code(answer.status);
    for (name, value) in [
        ("Content-Type", answer.content_type),
        ("Content-Security-Policy", page::POLICY),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Cache-Control", "no-store"),
    ] {
        let header = Header::from_bytes(name, value).expect("names and values of ours are ASCII");
        response.add_header(header);
    }
    // A browser that went away needs no answer.
    let _ = request.respond(response);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Gate {
        Gate {
            port: 4000,
            token: "0123456789abcdef".to_owned(),
        }
    }

    #[test]
    fn only_those_who_know_the_token_come_in() {
        let host = Some("127.0.0.1:4000");
        let gate = gate();
        assert_eq!(
            gate.open("/0123456789abcdef/open?x=1", host, None),
            Ok("open?x=1")
        );
        assert_eq!(
            gate.open("/0123456789abcdef/", Some("localhost:4000"), None),
            Ok("")
        );
        for target in [
            "/",
            "/open",
            "/0123456789abcde/open",
            "/0123456789abcdeg/",
            "//open",
            "",
        ] {
            assert_eq!(gate.open(target, host, None).expect_err(target).status, 403);
        }
    }

    #[test]
    fn no_other_host_or_origin_comes_in() {
        let gate = gate();
        let target = "/0123456789abcdef/open";
        for host in [
            None,
            Some("evil.example"),
            Some("127.0.0.1"),
            Some("127.0.0.1:80"),
        ] {
            assert!(gate.open(target, host, None).is_err(), "{host:?}");
        }
        let host = Some("127.0.0.1:4000");
        for origin in [
            "null",
            "http://evil.example",
            "https://127.0.0.1:4000",
            "http://127.0.0.1",
        ] {
            assert!(gate.open(target, host, Some(origin)).is_err(), "{origin}");
        }
        assert!(
            gate.open(target, host, Some("http://127.0.0.1:4000"))
                .is_ok()
        );
    }

    #[test]
    fn tokens_are_long_and_differ() {
        let (one, other) = (token().expect("random"), token().expect("random"));
        assert_eq!(one.len(), 32);
        assert_ne!(one, other);
    }
}
