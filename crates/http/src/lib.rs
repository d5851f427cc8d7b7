//! The HTTP server of the page (`view`) and of the metrics (`live --serve`).
//!
//! Every local user can connect to it, and to metrics on another address whoever reaches that. So there are limits for
//! whoever connects, before it is known who that is: on the bytes of a head and of a body, on the time that each may
//! take, on connections ([`limits`]). A stranger costs at most [`limits::CONNECTIONS`] connections of
//! [`limits::HEAD_BYTES`] each, and cannot keep out anybody else: the one that has been there longest without being
//! answered makes room. A [`Site`] then says by the head alone whether a request is let in, most of them with a
//! [`Gate`]; no byte of another's body is read.
//!
//! One thread serves the connections; answers that take a while are found on [`limits::ANSWERING`] others.
//!
//! [`Endpoint`] is a client's side: it posts to somebody else's server (`live --otlp`).

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
