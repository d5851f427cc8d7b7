//! What one connection, and all of them together, may cost.

use std::time::Duration;

/// Connections at once. The one whose client has been silent longest makes room for another, but none before
/// [`SILENT_TIME`]: the next waits for that.
pub const CONNECTIONS: usize = 512;
/// Time that a client has to say something however many others there are.
pub const SILENT_TIME: Duration = Duration::from_millis(100);
/// Bytes of a request's head, at most; more gets status 431.
pub const HEAD_BYTES: usize = 16 << 10;
/// Headers of a request, at most.
pub const HEADERS: usize = 64;
/// Bytes of a body, at most; more gets status 413.
pub const BODY_BYTES: usize = 1 << 20;
/// Time from a connection to the end of its first request's head.
pub const HEAD_TIME: Duration = Duration::from_secs(5);
/// Time from the end of a head to the end of its body.
pub const BODY_TIME: Duration = Duration::from_secs(10);
/// Time in which a client takes the next [`PIECE_BYTES`] of an answer, or asks again after its end.
pub const IDLE_TIME: Duration = Duration::from_secs(30);
/// An answer goes out in pieces of so many bytes.
pub const PIECE_BYTES: usize = 64 << 10;
/// Answers that are found at once; others wait.
pub const ANSWERING: usize = 4;
/// Connections that the kernel keeps until they are looked at: those of a burst, of which a client that finds no room
/// would only try again after a second.
pub const BACKLOG: i32 = 4096;
