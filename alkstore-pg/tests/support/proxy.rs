//! A wire that can be cut: a TCP proxy in front of the cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What becomes of what is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    /// It arrives.
    Sound,
    /// It is kept until the wire is sound again; nobody learns of that.
    Stalled,
    /// Every connection is closed, and none is let in.
    Cut,
}

/// When a connection is cut by what a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// The server never sees it.
    Before,
    /// The server has answered, and the client doesn't see the answer.
    After,
}

#[derive(Debug)]
struct Trap {
    text: &'static [u8],
    when: When,
}

#[derive(Debug)]
struct Shared {
    wire: watch::Sender<Wire>,
    trap: Mutex<Option<Trap>>,
    sprung: AtomicUsize,
}

pub(crate) struct Proxy {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("its number").port();
        let shared = Arc::new(Shared {
            wire: watch::Sender::new(Wire::Sound),
            trap: Mutex::default(),
            sprung: AtomicUsize::new(0),
        });
        let each = shared.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server, each.clone()));
            }
        });
        Self { port, shared, accepting }
    }

    pub(crate) fn set(&self, wire: Wire) {
        self.shared.wire.send_replace(wire);
    }

    /// Cuts the next connection whose client sends this text.
    pub(crate) fn cut_at(&self, text: &'static str, when: When) {
        *self.shared.trap.lock() = Some(Trap { text: text.as_bytes(), when });
    }

    /// How often a connection was cut that way.
    pub(crate) fn sprung(&self) -> usize {
        self.shared.sprung.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(Wire::Cut);
    }
}

async fn carry(client: TcpStream, server: u16, shared: Arc<Shared>) {
    let mut wire = shared.wire.subscribe();
    if *wire.borrow_and_update() == Wire::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let trapped = Arc::new(watch::Sender::new(false));
    let up = upward(from_client, to_server, &shared, &trapped);
    let down = downward(from_server, to_client, &shared, &trapped);
    // Whichever ends takes the other along: both sockets are closed.
    tokio::select! {
        () = up => {}
        () = down => {}
        _ = wire.wait_for(|wire| *wire == Wire::Cut) => {}
    }
}

async fn until_sound(shared: &Shared) {
    let _ = shared.wire.subscribe().wait_for(|wire| *wire != Wire::Stalled).await;
}

async fn upward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    trapped: &watch::Sender<bool>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = match from.read(&mut buffer).await {
            Ok(read) if read > 0 => read,
            _ => return,
        };
        let sent = &buffer[..read];
        let sprung = shared.trap.lock().take_if(|trap| contains(sent, trap.text));
        if let Some(trap) = sprung {
            shared.sprung.fetch_add(1, Ordering::SeqCst);
            if trap.when == When::Before {
                return;
            }
            trapped.send_replace(true);
        }
        until_sound(shared).await;
        if to.write_all(sent).await.is_err() {
            return;
        }
    }
}

async fn downward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    trapped: &watch::Sender<bool>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = match from.read(&mut buffer).await {
            Ok(read) if read > 0 => read,
            _ => return,
        };
        if *trapped.borrow() {
            return;
        }
        until_sound(shared).await;
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

fn contains(sent: &[u8], text: &[u8]) -> bool {
    sent.windows(text.len()).any(|window| window == text)
}
