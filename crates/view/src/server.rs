//! The local web server. It only serves this machine, requests with the token, and pages of its own origin.

use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use nearpage_http::{Answer, Gate, Head, Server, Site};

use crate::access::Access;
use crate::answer::Question;
use crate::{Error, Session, page};

/// A server that listens.
#[derive(Debug)]
pub struct Listening {
    server: Server,
    token: String,
    not_kept: Option<String>,
}

impl Listening {
    /// Listens on a port of the loopback address, to show these paths. Port 0 means the port that an earlier page of
    /// the same paths had if it is free, else any free port.
    ///
    /// # Errors
    /// [`Error::PortInUse`], [`Error::Listen`], [`Error::Random`], [`Error::NoPage`].
    pub fn new(port: u16, paths: &[&Path]) -> Result<Self, Error> {
        if page::HTML.is_empty() {
            return Err(Error::NoPage);
        }
        let folder = nearpage_plan::state_folder().map(|folder| folder.join("view"));
        let access = Access::of(paths, folder.as_deref())?;
        let bind = |port| Server::bind((Ipv4Addr::LOCALHOST, port));
        let server = match port {
            // If another page of these paths is open, it keeps the port.
            0 => bind(access.port).or_else(|_| bind(0)),
            port => bind(port),
        };
        let server = server.map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => Error::PortInUse { port },
            _ => Error::Listen { port, source },
        })?;
        let is_to_be_kept = port != 0 || access.port == 0 || access.port == server.address().port();
        let kept = match is_to_be_kept {
            true => access.keep(server.address().port()),
            false => Ok(()),
        };
        Ok(Self {
            server,
            token: access.token,
            not_kept: kept.err().map(|error| {
                let folder = folder.unwrap_or_default();
                format!(
                    "addresses of this page end with it: {}: {error}",
                    folder.display()
                )
            }),
        })
    }

    /// Why the page's addresses will be invalid after a restart; `None` if they stay valid.
    pub fn not_kept(&self) -> Option<&str> {
        self.not_kept.as_deref()
    }

    /// The page's address. Its token gives access to the page.
    pub fn address(&self) -> String {
        format!("http://{}/{}/", self.server.address(), self.token)
    }

    /// Answers requests until the process ends. `opened` is called once, at the first request with the token.
    ///
    /// # Errors
    /// [`Error::Listen`], if the kernel refuses resources of the server.
    pub fn serve(
        self,
        session: Arc<Session>,
        opened: impl FnOnce() + Send + 'static,
    ) -> Result<Infallible, Error> {
        let address = self.server.address();
        let gate = Gate::new(address, Some(self.token));
        let door = Gate::new(address, None);
        let served = self.server.serve(Arc::new(Page {
            session,
            gate,
            door,
            opened: Mutex::new(Some(Box::new(opened))),
        }));
        served.map_err(|source| Error::Listen {
            port: address.port(),
            source,
        })
    }
}

/// The page, and the data that it shows.
struct Page {
    session: Arc<Session>,
    gate: Gate,
    /// Admits requests without the token that the gate would admit with it. These may read the page's files, which
    /// contain no data.
    door: Gate,
    opened: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Site for Page {
    fn policy(&self) -> &'static str {
        page::POLICY
    }

    fn admit<'a>(&self, head: &Head<'a>) -> Result<&'a str, Answer> {
        let refused = match self.gate.admit(head) {
            Err(refused) => refused,
            admitted => return admitted,
        };
        // The request has no token; the page's script has it from an earlier visit. The first part of the path can be a
        // title, so `/cg.nearpage/page.js` is `page.js`.
        let target = self.door.admit(head)?;
        let inside = target.strip_prefix('/').unwrap_or(target);
        let inside = inside.split_once('/').map_or(inside, |(_, inside)| inside);
        match page::file(inside) {
            Some(_) => Ok(inside),
            None => Err(refused),
        }
    }

    fn answer(&self, target: &str, body: Option<&[u8]>) -> Answer {
        if let Some(file) = page::file(target) {
            return file;
        }
        let opened = self.opened.lock().expect("nobody panics with it").take();
        if let Some(opened) = opened {
            opened();
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
