//! A wire that can be cut, held and slow: forwards TCP connections from one port to another.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

#[derive(Default)]
struct Wire {
    streams: Mutex<Vec<TcpStream>>,
    is_held: AtomicBool,
    /// How long what comes back from the target takes, in milliseconds.
    delay: AtomicU64,
    connections: AtomicUsize,
}

pub(crate) struct Proxy {
    port: u16,
    wire: Arc<Wire>,
}

impl Proxy {
    /// To `tcp://HOST:PORT`. Its threads end with the process.
    pub(crate) fn to(endpoint: &str) -> Self {
        let target = endpoint.strip_prefix("tcp://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let wire = Arc::new(Wire::default());
        let shared = Arc::clone(&wire);
        thread::spawn(move || {
            for inside in listener.incoming().flatten() {
                let Ok(outside) = TcpStream::connect(&target) else { continue };
                shared.connections.fetch_add(1, SeqCst);
                let ends = [&inside, &outside].map(|stream| stream.try_clone().unwrap());
                shared.streams.lock().unwrap().extend(ends);
                let pair = [&inside, &outside].map(|stream| stream.try_clone().unwrap());
                forward(Arc::clone(&shared), inside, outside, false);
                let [inside, outside] = pair;
                forward(Arc::clone(&shared), outside, inside, true);
            }
        });
        Self { port, wire }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    /// Ends every connection, with whatever is on its way.
    pub(crate) fn cut(&self) {
        for stream in self.wire.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// From now on nothing gets through, or everything again.
    pub(crate) fn hold(&self, is_held: bool) {
        self.wire.is_held.store(is_held, SeqCst);
    }

    /// From now on what comes back from the target takes that long.
    pub(crate) fn delay_answers(&self, by: Duration) {
        self.wire.delay.store(by.as_millis() as u64, SeqCst);
    }

    /// Connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.wire.connections.load(SeqCst)
    }
}

fn forward(wire: Arc<Wire>, mut from: TcpStream, mut to: TcpStream, answers: bool) {
    thread::spawn(move || {
        let mut buffer = [0; 16 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if answers {
                thread::sleep(Duration::from_millis(wire.delay.load(SeqCst)));
            }
            while wire.is_held.load(SeqCst) {
                thread::sleep(Duration::from_millis(2));
            }
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
