//! Admission of requests.

use std::net::SocketAddr;

use crate::answer::{Answer, Head, Method};

/// Admits requests that call the server by its own name, come from no other site, and have the token if there is one.
#[derive(Clone, Debug)]
pub struct Gate {
    address: SocketAddr,
    token: Option<String>,
}

impl Gate {
    /// A gate for a server at `address`. With a token, every request's path must begin with `/TOKEN/`.
    pub fn new(address: SocketAddr, token: Option<String>) -> Self {
        Self { address, token }
    }

    /// Returns the requested path after the token.
    ///
    /// # Errors
    /// The answer to a request that is not admitted.
    pub fn admit<'a>(&self, head: &Head<'a>) -> Result<&'a str, Answer> {
        // A foreign page could use another name for this address to get around the browser's same-origin rule. On an
        // address that other machines can reach, clients may use any name that those machines have for it.
        if self.address.ip().is_loopback() && !head.host.is_some_and(|host| self.is_own(host)) {
            let port = self.address.port();
            let said = format!("nearpage answers to 127.0.0.1:{port} and localhost:{port} only\n");
            return Err(Answer::error(403, said));
        }
        let own = |origin: &str| origin.strip_prefix("http://") == head.host;
        // A form on another page may post without an origin; the site's own page always sends its origin.
        if !head.origin.map_or(head.method == Method::Get, own) {
            return Err(Answer::error(
                403,
                "nearpage answers to its own page only\n",
            ));
        }
        let Some(own) = &self.token else {
            return Ok(head.target);
        };
        let inside = head
            .target
            .strip_prefix('/')
            .and_then(|target| target.split_once('/'))
            .filter(|(token, _)| is_same(token.as_bytes(), own.as_bytes()))
            .map(|(_, inside)| inside);
        inside.ok_or_else(|| {
            Answer::error(
                403,
                "wrong or missing token: open the address that `nearpage view` printed\n",
            )
        })
    }

    fn is_own(&self, host: &str) -> bool {
        let port = self.address.port();
        ["127.0.0.1", "localhost", "[::1]"]
            .map(|name| format!("{name}:{port}"))
            .iter()
            .any(|own| own == host)
            || host == self.address.to_string()
    }
}

/// Compares in a time that does not depend on the contents, so that a token cannot be guessed byte by byte.
fn is_same(left: &[u8], right: &[u8]) -> bool {
    let differ = left
        .iter()
        .zip(right)
        .fold(0, |differ, (a, b)| differ | (a ^ b));
    left.len() == right.len() && differ == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Option<&str> = Some("127.0.0.1:4000");

    fn gate(token: Option<&str>) -> Gate {
        Gate::new(([127, 0, 0, 1], 4000).into(), token.map(str::to_owned))
    }

    fn get<'a>(target: &'a str, host: Option<&'a str>, origin: Option<&'a str>) -> Head<'a> {
        Head {
            method: Method::Get,
            target,
            host,
            origin,
        }
    }

    #[test]
    fn only_those_who_know_the_token_come_in() {
        let gate = gate(Some("0123456789abcdef"));
        let inside = |target| gate.admit(&get(target, HOST, None));
        assert_eq!(inside("/0123456789abcdef/open?x=1"), Ok("open?x=1"));
        assert_eq!(
            gate.admit(&get("/0123456789abcdef/", Some("localhost:4000"), None)),
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
            assert_eq!(inside(target).expect_err(target).status, 403);
        }
    }

    #[test]
    fn no_other_host_or_origin_comes_in() {
        let gate = gate(Some("0123456789abcdef"));
        let target = "/0123456789abcdef/open";
        for host in [
            None,
            Some("evil.example"),
            Some("127.0.0.1"),
            Some("127.0.0.1:80"),
        ] {
            assert!(gate.admit(&get(target, host, None)).is_err(), "{host:?}");
        }
        for origin in [
            "null",
            "http://evil.example",
            "https://127.0.0.1:4000",
            "http://127.0.0.1",
        ] {
            assert!(
                gate.admit(&get(target, HOST, Some(origin))).is_err(),
                "{origin}"
            );
        }
        let own = get(target, HOST, Some("http://127.0.0.1:4000"));
        assert!(gate.admit(&own).is_ok());
        let post = |origin| Head {
            method: Method::Post,
            origin,
            ..own
        };
        assert!(gate.admit(&post(own.origin)).is_ok());
        assert!(
            gate.admit(&post(None)).is_err(),
            "a form of any page posts so"
        );
    }

    #[test]
    fn metrics_on_a_loopback_address_go_to_nobody_who_calls_it_by_another_name() {
        assert_eq!(
            gate(None).admit(&get("/metrics", HOST, None)),
            Ok("/metrics")
        );
        assert!(
            gate(None)
                .admit(&get("/metrics", Some("evil.example:4000"), None))
                .is_err()
        );
        let open = Gate::new(([0, 0, 0, 0], 4000).into(), None);
        assert!(
            open.admit(&get("/metrics", Some("db7.example:4000"), None))
                .is_ok()
        );
        let foreign = get(
            "/metrics",
            Some("db7.example:4000"),
            Some("http://evil.example"),
        );
        assert!(open.admit(&foreign).is_err());
    }
}
