//! Limits of one connection, and of all connections together.

use std::time::Duration;

/// Maximum number of connections. The connection whose client has been silent longest makes room for a new client, but
/// only after [`SILENT_TIME`]; the new client waits until then.
pub const CONNECTIONS: usize = 512;
/// Minimum time that a client has to send something, even if all connections are taken.
pub const SILENT_TIME: Duration = Duration::from_millis(100);
/// Maximum bytes of a request's head; a larger head gets status 431.
pub const HEAD_BYTES: usize = 16 << 10;
/// Maximum number of headers in a request.
pub const HEADERS: usize = 64;
/// Maximum bytes of a body; a larger body gets status 413.
pub const BODY_BYTES: usize = 1 << 20;
/// Time from a connection to the end of its first request's head.
pub const HEAD_TIME: Duration = Duration::from_secs(5);
/// Time from the end of a head to the end of its body.
pub const BODY_TIME: Duration = Duration::from_secs(10);
/// Time in which a client must take the next [`PIECE_BYTES`] of an answer, or make a new request after the end.
pub const IDLE_TIME: Duration = Duration::from_secs(30);
/// Size of the pieces in which an answer is sent.
pub const PIECE_BYTES: usize = 64 << 10;
/// Number of answers that are computed at once; further requests wait.
pub const CONCURRENT_ANSWERS: usize = 4;
/// Length of the kernel's queue of new connections, for bursts. A client that finds the queue full would try again only
/// after a second.
pub const BACKLOG: i32 = 4096;
