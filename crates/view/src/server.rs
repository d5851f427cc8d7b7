//! The local web server: this machine only, nobody who does not know the token, no other origin.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use nearpage_http::{Answer, Gate, Head, Server, Site};

use crate::answer::Question;
use crate::{Error, Session, page};

/// A server that listens.
#[derive(Debug)]
pub struct Listening {
    server: Server,
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
        let server =
            Server::bind((Ipv4Addr::LOCALHOST, port)).map_err(|source| match source.kind() {
                io::ErrorKind::AddrInUse => Error::PortInUse { port },
                _ => Error::Listen { port, source },
            })?;
        Ok(Self {
            server,
            token: token()?,
        })
    }

    /// The address to open: whoever knows it may look.
    pub fn address(&self) -> String {
        format!("http://{}/{}/", self.server.address(), self.token)
    }

    /// Answers until the process ends; `opened` is called once, when somebody with the token asks for the first time.
    ///
    /// # Errors
    /// [`Error::Listen`], where the kernel refuses what a server needs.
    pub fn serve(
        self,
        session: Arc<Session>,
        opened: impl FnOnce() + Send + 'static,
    ) -> Result<Infallible, Error> {
        let address = self.server.address();
        let gate = Gate::new(address, Some(self.token));
        let served = self.server.serve(Arc::new(Page {
            session,
            gate,
            opened: Mutex::new(Some(Box::new(opened))),
        }));
        served.map_err(|source| Error::Listen {
            port: address.port(),
            source,
        })
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

/// The page with what it shows.
struct Page {
    session: Arc<Session>,
    gate: Gate,
    opened: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Site for Page {
    fn policy(&self) -> &'static str {
        page::POLICY
    }

    fn admit<'a>(&self, head: &Head<'a>) -> Result<&'a str, Answer> {
        self.gate.admit(head)
    }

    fn answer(&self, target: &str, body: Option<&[u8]>) -> Answer {
        let opened = self.opened.lock().expect("nobody panics with it").take();
        if let Some(opened) = opened {
            opened();
        }
        if let Some(file) = page::file(target) {
            return file;
        }
        let body = match body
            .map(|bytes| String::from_utf8(bytes.to_vec()))
            .transpose()
        {
            Ok(body) => body,
            Err(error) => return Answer::error(400, format!("{error}\n")),
        };
        self.session.answer(&Question {
            body,
            ..Question::parse(target)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_and_differ() {
        let (one, other) = (token().expect("random"), token().expect("random"));
        assert_eq!(one.len(), 32);
        assert_ne!(one, other);
    }
}
