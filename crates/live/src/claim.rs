//! Claims on processes: at most one daemon manages a process, the first one that claims it while it lives.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::mover::Identity;

/// A claim on a process: a socket with an abstract name. The kernel removes the socket when the daemon ends in any way.
#[derive(Debug)]
pub struct Claim {
    _socket: UnixDatagram,
}

impl Claim {
    /// Claims a process; `None`: another daemon has claimed it.
    pub fn on(process: Identity) -> Option<Self> {
        let name = format!("nearpage-live/{}/{}", process.pid, process.started);
        let address = SocketAddr::from_abstract_name(name).ok()?;
        let _socket = UnixDatagram::bind_addr(&address).ok()?;
        Some(Self { _socket })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_claimed_once_at_a_time() {
        let process = Identity {
            pid: std::process::id(),
            started: 17,
        };
        let claim = Claim::on(process).expect("nobody has");
        assert!(Claim::on(process).is_none());
        // A later process with the same number is another process.
        assert!(
            Claim::on(Identity {
                started: 18,
                ..process
            })
            .is_some()
        );
        drop(claim);
        assert!(Claim::on(process).is_some());
    }
}
