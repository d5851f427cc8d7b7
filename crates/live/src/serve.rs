//! Metrics for Prometheus, over HTTP.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use crate::error::Error;
use crate::metrics::Metrics;

/// A server on a thread of its own, for as long as the process lives.
#[derive(Clone, Debug)]
pub struct MetricsServer {
    text: Arc<Mutex<String>>,
    address: SocketAddr,
}

impl MetricsServer {
    /// Serves `http://ADDRESS/metrics`.
    ///
    /// # Errors
    /// An address that cannot be had.
    pub fn start(address: &str) -> Result<Self, Error> {
        let refused = |why: String| Error::Serve {
            address: address.to_owned(),
            why,
        };
        let server =
            tiny_http::Server::http(address).map_err(|error| refused(error.to_string()))?;
        let bound = server.server_addr().to_ip();
        let bound = bound.ok_or_else(|| refused("not an IP address".to_owned()))?;
        let text = Arc::new(Mutex::new(Metrics::default().text()));
        let served = Arc::clone(&text);
        std::thread::spawn(move || {
            for request in server.incoming_requests() {
                let known = request.url() == "/metrics";
                let (status, body) = match known {
                    true => (200, served.lock().expect("nobody panics with it").clone()),
                    false => (404, "nearpage live serves /metrics\n".to_owned()),
                };
                let plain = "text/plain; version=0.0.4; charset=utf-8";
                let header = tiny_http::Header::from_bytes("Content-Type", plain);
                let mut response = tiny_http::Response::from_string(body).with_status_code(status);
                if let Ok(header) = header {
                    response.add_header(header);
                }
                // Whoever asked may have gone.
                let _ = request.respond(response);
            }
        });
        Ok(Self {
            text,
            address: bound,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What is served from now on.
    pub fn show(&self, metrics: &Metrics) {
        *self.text.lock().expect("nobody panics with it") = metrics.text();
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
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
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
