//! HTTP server of the metrics, for Prometheus.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use nearpage_http::{Answer, Gate, Head, Method, Server, Site};

use crate::error::Error;
use crate::metrics::Metrics;

/// A server on a thread of its own, until the process ends.
#[derive(Clone, Debug)]
pub struct MetricsServer {
    scrape: Arc<Mutex<Answer>>,
    address: SocketAddr,
}

impl MetricsServer {
    /// Serves `http://ADDRESS/metrics`.
    ///
    /// # Errors
    /// The server cannot listen on the address.
    pub fn start(address: &str) -> Result<Self, Error> {
        let refused = |error: std::io::Error| Error::Serve {
            address: address.to_owned(),
            why: error.to_string(),
        };
        let server = Server::bind(address).map_err(refused)?;
        let bound = server.address();
        let scrape = Arc::new(Mutex::new(scrape(&Metrics::default())));
        let site = Arc::new(Scraped {
            scrape: scrape.clone(),
            gate: Gate::new(bound, None),
        });
        std::thread::spawn(move || {
            // Errors at the start (lack of memory or descriptors) leave the port without a server, as scrapers notice.
            let _ = server.serve(site);
        });
        Ok(Self {
            scrape,
            address: bound,
        })
    }

    /// Address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the served metrics.
    pub fn show(&self, metrics: &Metrics) {
        *self.scrape.lock().expect("nobody panics with it") = scrape(metrics);
    }
}

/// Answer to a scrape.
fn scrape(metrics: &Metrics) -> Answer {
    Answer {
        status: 200,
        content_type: "text/plain; version=0.0.4; charset=utf-8",
        body: metrics.text().into(),
    }
}

/// The site with the latest scrape.
struct Scraped {
    scrape: Arc<Mutex<Answer>>,
    gate: Gate,
}

impl Site for Scraped {
    fn admit<'a>(&self, head: &Head<'a>) -> Result<&'a str, Answer> {
        let target = self.gate.admit(head)?;
        match target.split('?').next() == Some("/metrics") {
            _ if head.method != Method::Get => Err(Answer::error(405, "GET\n")),
            true => Ok(target),
            false => Err(Answer::error(404, "nearpage live serves /metrics\n")),
        }
    }

    fn answer(&self, _: &str, _: Option<&[u8]>) -> Answer {
        self.scrape.lock().expect("nobody panics with it").clone()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("it listens");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        )
        .expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    }

    #[test]
    fn metrics_are_served_and_nothing_else() {
        let server = MetricsServer::start("127.0.0.1:0").expect("a free port");
        let answer = get(server.address(), "/metrics");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(
            answer.contains("nearpage_live_intervals_total 0\n"),
            "{answer}"
        );
        assert!(get(server.address(), "/").starts_with("HTTP/1.1 404"));
        let taken = MetricsServer::start(&server.address().to_string()).expect_err("taken");
        assert!(
            taken.to_string().starts_with("cannot serve on 127.0.0.1:"),
            "{taken}"
        );
    }
}
