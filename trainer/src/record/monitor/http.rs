//! One page over HTTP: an answer to each connection, one after the other.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use httparse::{EMPTY_HEADER, Request, Status};

/// A request above this many bytes is no request for this page.
const LONGEST: usize = 8 << 10;
const MOST_HEADERS: usize = 64;
/// Long enough for a request and its answer. Nobody may keep others waiting for longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// What Prometheus calls the text format with an end mark.
const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers until the process ends.
pub(super) fn serve(listener: &TcpListener, page: impl Fn() -> String) {
    for stream in listener.incoming() {
        match stream {
            // Whoever asks and goes away loses nothing but the answer.
            Ok(stream) => drop(answer(stream, &page)),
            // Too many open files, say: that may pass.
            Err(_) => thread::sleep(PATIENCE),
        }
    }
}

fn answer(mut stream: TcpStream, page: impl Fn() -> String) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    let (mut head, mut len) = ([0; LONGEST], 0);
    let (status, body) = loop {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        let read = stream.read(&mut head[len..])?;
        len += read;
        match status(&head[..len]) {
            Some("200 OK") => break ("200 OK", page()),
            Some(other) => break (other, format!("{other}; the page is GET /metrics\n")),
            None if read == 0 || end <= Instant::now() => return Ok(()),
            None => {}
        }
    };
    let kind = if status == "200 OK" { TEXT } else { "text/plain" };
    let len = body.len();
    let lines = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    );
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all((lines + &body).as_bytes())
}

/// The status of the answer, once the request is whole.
fn status(head: &[u8]) -> Option<&'static str> {
    let mut headers = [EMPTY_HEADER; MOST_HEADERS];
    let mut request = Request::new(&mut headers);
    match request.parse(head) {
        Ok(Status::Partial) if head.len() < LONGEST => None,
        Ok(Status::Complete(_)) => Some(match (request.method, request.path) {
            (Some("GET"), Some(path)) if path.split('?').next() == Some("/metrics") => "200 OK",
            (Some("GET"), _) => "404 Not Found",
            _ => "405 Method Not Allowed",
        }),
        _ => Some("400 Bad Request"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_status_and_half_of_one_has_none() {
        let whole = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
        assert_eq!(status(whole), Some("200 OK"));
        assert!((0..whole.len()).all(|len| status(&whole[..len]).is_none()));
        let others: [(&[u8], _); 6] = [
            (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", "200 OK"),
            (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"GET /metricsx HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400 Bad Request"),
            (&[b'x'; LONGEST], "400 Bad Request"),
        ];
        for (head, expected) in others {
            assert_eq!(status(head), Some(expected), "{}", String::from_utf8_lossy(head));
        }
    }

    #[test]
    fn strangers_do_not_keep_others_from_the_page() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || serve(&listener, || "x 1\n".to_owned()));
        let _silent = TcpStream::connect(address).unwrap();
        let mut slow = TcpStream::connect(address).unwrap();
        slow.write_all(b"GET /met").unwrap();
        drop(TcpStream::connect(address).unwrap());
        let mut asks = TcpStream::connect(address).unwrap();
        asks.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut said = String::new();
        asks.set_read_timeout(Some(20 * PATIENCE)).unwrap();
        asks.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n") && said.ends_with("\r\n\r\nx 1\n"), "{said}");
    }
}
