//! One end of a connection of TCP alone, or of TLS over it.
//!
//! The ends are plain: calls that block, no task and no message but a byte before each run.

use super::runs::{Instants, Runs, Way};
use gateway::host::{Host as _, RealHost};
use gateway::wan::connect::tls::{Credentials, gateway_verifier_client_config};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One end of a connection.
#[derive(Debug, clap::Args)]
pub struct Alone {
    /// Address of the gateway's end
    #[arg(long)]
    at: SocketAddr,
    /// Be the trainer's end, which dials
    #[arg(long)]
    dial: bool,
    /// Speak TLS, with the folder that `landbridge certs` made
    #[arg(long)]
    keys: Option<PathBuf>,
    /// Name of the gateway whose certificate is shown
    #[arg(long, default_value = "site-0")]
    gateway: String,
    #[command(flatten)]
    runs: Runs,
}

/// 5 s, within which the gateway's end listens.
const LISTENS_WITHIN: Duration = Duration::from_secs(5);

/// 256 KiB: what one read or write takes from the connection, as between trainer and gateway.
const CALL_BYTES: usize = 1 << 18;

impl Alone {
    /// Moves the bytes of all runs, as one end of the connection.
    pub fn move_bytes(&self) -> io::Result<Instants> {
        let stream = if self.dial { self.dial()? } else { TcpListener::bind(self.at)?.accept()?.0 };
        stream.set_nodelay(true)?;
        let sends = self.dial == (self.runs.way == Way::Up);
        let Some(keys) = &self.keys else { return move_all(stream, sends, &self.runs) };
        let file = |name: &str| keys.join(name);
        let stream = ReadAhead(BufReader::with_capacity(CALL_BYTES, stream));
        if self.dial {
            let config = gateway_verifier_client_config(&file("ca.pem"), None, None);
            let config = config.map_err(io::Error::other)?;
            let name = ServerName::IpAddress(self.at.ip().into());
            let tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
            move_all(StreamOwned::new(tls, stream), sends, &self.runs)
        } else {
            let [chain, key] = ["pem", "key"].map(|end| file(&format!("{}.{end}", self.gateway)));
            let credentials = Credentials::load(&chain, &key, &file("ca.pem"));
            let config =
                credentials.and_then(|credentials| credentials.attach_acceptor_config(None));
            let config = Arc::new(config.map_err(io::Error::other)?);
            let tls = ServerConnection::new(config).map_err(io::Error::other)?;
            move_all(StreamOwned::new(tls, stream), sends, &self.runs)
        }
    }

    fn dial(&self) -> io::Result<TcpStream> {
        let begun = Instant::now();
        loop {
            match TcpStream::connect(self.at) {
                Err(_) if begun.elapsed() < LISTENS_WITHIN => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                connected => return connected,
            }
        }
    }
}

/// Moves the bytes of all runs between the connection and memory. The receiver sends a byte before
/// each run, so that nothing of it is under way when it begins.
fn move_all(mut stream: impl Read + Write, sends: bool, runs: &Runs) -> io::Result<Instants> {
    let (mut memory, clock) = (runs.touched_memory(), RealHost);
    let mut instants = Instants::of_beginning_runs();
    for _ in 0..runs.iterations {
        if sends {
            stream.read_exact(&mut [0])?;
            instants.posted_ns.push(clock.now().ns());
            memory.chunks(CALL_BYTES).try_for_each(|chunk| stream.write_all(chunk))?;
            stream.flush()?;
            instants.ready_ns.push(0);
        } else {
            stream.write_all(&[0])?;
            stream.flush()?;
            instants.posted_ns.push(0);
            stream.read_exact(&mut memory)?;
            instants.ready_ns.push(clock.now().ns());
        }
    }
    Ok(instants)
}

/// A connection that is read ahead of TLS, which takes 4 KiB at once.
struct ReadAhead(BufReader<TcpStream>);

impl Read for ReadAhead {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for ReadAhead {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.get_mut().write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}
