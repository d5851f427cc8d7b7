//! The HTTP server of the page (`view`) and of the metrics (`live --serve`).
//!
//! Every local user can connect to the server, and other machines to metrics on another address. So limits apply before
//! a client is identified: to the bytes of a head and a body, to the time for each, and to the number of connections
//! ([`limits`]). Strangers occupy at most [`limits::CONNECTIONS`] connections of [`limits::HEAD_BYTES`] each, and
//! cannot keep others out: the connection that has been silent longest makes room. A [`Site`] then decides by the head
//! whether a request is admitted, usually with a [`Gate`]. The body of a refused request is not read.
//!
//! One thread serves the connections. Slow answers are computed on up to [`limits::CONCURRENT_ANSWERS`] other threads.
//!
//! [`Endpoint`] is the client's side: it posts to another server (`live --otlp`).

mod answer;
mod connection;
mod gate;
pub mod limits;
mod post;
mod server;

pub use answer::{Answer, Head, Method, Site};
pub use gate::Gate;
pub use post::{Endpoint, Posted};
pub use server::{Server, answer_bytes};
