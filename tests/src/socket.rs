//! The part of WebSocket (RFC 6455) that DevTools needs: text messages in both directions.

use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A WebSocket connection.
pub(crate) struct Socket {
    stream: BufReader<TcpStream>,
}

impl Socket {
    /// Connects to `ws://HOST:PORT/PATH`; no operation waits longer than `patience`.
    pub fn open(address: &str, patience: Duration) -> io::Result<Self> {
        let (host, path) = address
            .strip_prefix("ws://")
            .and_then(|address| address.split_once('/'))
            .ok_or_else(|| io::Error::other(format!("{address}: not ws://HOST:PORT/PATH")))?;
        let mut stream = BufReader::new(TcpStream::connect(host)?);
        stream.get_ref().set_read_timeout(Some(patience))?;
        let request = format!(
            "GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        stream.get_mut().write_all(request.as_bytes())?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.extend(byte);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        match head.starts_with("HTTP/1.1 101") {
            true => Ok(Self { stream }),
            false => Err(io::Error::other(head)),
        }
    }

    /// Sends a text message.
    pub fn send(&mut self, text: &str) -> io::Result<()> {
        self.stream
            .get_mut()
            .write_all(&frame(TEXT, text.as_bytes()))
    }

    /// Receives the next text message.
    pub fn read(&mut self) -> io::Result<String> {
        let mut text = Vec::new();
        loop {
            let (kind, last, content) = read_frame(&mut self.stream)?;
            match kind {
                CONTINUATION | TEXT => {
                    text.extend(content);
                    if last {
                        return String::from_utf8(text).map_err(io::Error::other);
                    }
                }
                PING => self.stream.get_mut().write_all(&frame(PONG, &content))?,
                CLOSE => return Err(io::ErrorKind::ConnectionAborted.into()),
                _ => {}
            }
        }
    }
}

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// A whole message in one frame. Clients must mask; a mask of zeros changes nothing.
fn frame(kind: u8, content: &[u8]) -> Vec<u8> {
    const MASKED: u8 = 0x80;
    let mut frame = vec![0x80 | kind];
    match content.len() {
        length @ 0..126 => frame.push(MASKED | length as u8),
        length @ 126..0x1_0000 => {
            frame.push(MASKED | 126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(MASKED | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(content);
    frame
}

/// Kind of frame, whether it ends its message, and content. Servers don't mask.
fn read_frame(stream: &mut impl Read) -> io::Result<(u8, bool, Vec<u8>)> {
    let mut head = [0; 2];
    stream.read_exact(&mut head)?;
    let length = match head[1] & 0x7f {
        126 => {
            let mut length = [0; 2];
            stream.read_exact(&mut length)?;
            u64::from(u16::from_be_bytes(length))
        }
        127 => {
            let mut length = [0; 8];
            stream.read_exact(&mut length)?;
            u64::from_be_bytes(length)
        }
        length => length.into(),
    };
    let mut content = Vec::new();
    stream.take(length).read_to_end(&mut content)?;
    if content.len() as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((head[0] & 0xf, head[0] & 0x80 != 0, content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_all_lengths() {
        for length in [0, 1, 125, 126, 0xffff, 0x1_0000] {
            let content = vec![b'x'; length];
            let mut bytes = frame(TEXT, &content);
            // A server's frame has no mask.
            let head = bytes.len() - length - 4;
            bytes.drain(head..head + 4);
            bytes[1] &= 0x7f;
            let read = read_frame(&mut &bytes[..]).expect("a frame");
            assert_eq!(read, (TEXT, true, content));
        }
    }
}
