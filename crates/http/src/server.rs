//! Listens for connections, and passes them to [`serve_connection`].

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use socket2::{Domain, Socket, Type};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{LocalSet, spawn_local};

use crate::answer::Site;
use crate::connection::{Connections, serve_connection};
use crate::limits;

/// A server that listens on an address.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens on an address; port 0 means any free port.
    ///
    /// # Errors
    /// The kernel refuses the port, or the name has no address.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let mut refused = io::Error::new(io::ErrorKind::AddrNotAvailable, "no such address");
        for address in address.to_socket_addrs()? {
            match listen(address) {
                Ok(listener) => {
                    return Ok(Self {
                        address: listener.local_addr()?,
                        listener,
                    });
                }
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// Address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until the process ends.
    ///
    /// # Errors
    /// The kernel refuses a resource that is needed at the start.
    pub fn serve(self, site: Arc<dyn Site>) -> io::Result<Infallible> {
        let runtime = runtime()?;
        let connections = Rc::new(Connections::default());
        LocalSet::new().block_on(&runtime, async move {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    // The client has left again, or this process has no descriptors left.
                    connections.drop_longest_silent();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                let _ = stream.set_nodelay(true);
                let (number, allowance) = connections.enter().await;
                let (site, left) = (site.clone(), connections.clone());
                let attending = spawn_local(async move {
                    serve_connection(TokioIo::new(stream), site, allowance).await;
                    left.leave(number);
                });
                connections.ended_by(number, attending.abort_handle());
            }
        })
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A restarted server need not wait until the kernel has forgotten the old connections.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(limits::BACKLOG)?;
    Ok(socket.into())
}

fn runtime() -> io::Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    builder
        .enable_io()
        .enable_time()
        .max_blocking_threads(limits::CONCURRENT_ANSWERS);
    builder.build()
}

/// Answer to a client that sends these bytes and nothing else, without a socket. For tests and fuzzing.
///
/// # Errors
/// Those of [`Server::serve`].
pub fn answer_bytes(site: Arc<dyn Site>, sent: &[u8]) -> io::Result<Vec<u8>> {
    let mut client = Client {
        unsent: sent.to_vec(),
        answers: Vec::new(),
    };
    LocalSet::new().block_on(&runtime()?, async {
        let (_, allowance) = Connections::default().enter().await;
        serve_connection(&mut client, site, allowance).await;
    });
    Ok(client.answers)
}

/// A client without a socket.
struct Client {
    unsent: Vec<u8>,
    answers: Vec<u8>,
}

impl Read for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let bytes = self.unsent.len().min(buffer.remaining());
        buffer.put_slice(&self.unsent[..bytes]);
        self.unsent.drain(..bytes);
        Poll::Ready(Ok(()))
    }
}

impl Write for Client {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.answers.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
