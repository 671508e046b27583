//! Two gateways, each a process, in a folder of their own.

use gateway::client::{Attach, Client, Way};
use gateway::local::protocol::Token;
use gateway::loopback::ports;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::Epoch;
use hier_collectives::post::Failure;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};

pub const BINARY: &str = env!("CARGO_BIN_EXE_landbridge");

/// See the module; its gateways are killed when it is dropped.
pub struct Deployment {
    folder: tempfile::TempDir,
    /// Whether gateways log all that they can.
    pub debug: bool,
    pub gateways: Vec<Running>,
    /// Where west's gateway answers.
    pub west: SocketAddr,
}

/// A gateway's process and what it logs.
pub struct Running {
    pub process: Child,
    pub log: Arc<Log>,
}

/// What a process logs, read all the time so that it never waits for its reader.
#[derive(Default)]
pub struct Log {
    text: Mutex<(String, bool)>,
    grown: Condvar,
}

/// What a deployment is made of.
pub struct Layout<'a> {
    pub east: u32,
    pub west: u32,
    pub jobs: &'a [&'a str],
    /// Of the link between them.
    pub rate: &'a str,
    /// Where east finds west, when that is not where west listens.
    pub west_seen_at: Option<u16>,
}

/// All ranks of one job, in this process.
pub struct Team(Vec<Client>);

impl Team {
    /// Attaches them.
    pub async fn attach(deployment: &Deployment, layout: &Layout<'_>, job: &str) -> Self {
        let attach = |rank: u32| {
            let region = if rank < layout.east { "east" } else { "west" };
            let way = Way::Socket(deployment.path(&format!("{region}.sock")));
            let token = deployment.token(job);
            async move {
                let attach = Attach::new(job, token, rank, 16 << 20);
                Client::attach(&way, attach).await.expect("attaches")
            }
        };
        // All must be there before the first is told of an epoch.
        let mut team = Vec::new();
        for rank in 0..layout.east + layout.west {
            team.push(attach(rank).await);
        }
        Self(team)
    }

    /// Every rank gives `elements` times a value: the bytes of the result, the same for all.
    pub async fn sum(&self, values: &[i64], elements: usize) -> Result<Vec<u8>, Failure> {
        let mut operations = Vec::new();
        for (client, value) in self.0.iter().zip(values) {
            let mut tensor = client.allocate(Dtype::I64, elements as u64).expect("room");
            tensor.write(&value.to_le_bytes().repeat(elements));
            let posted = client.all_reduce(tensor, ReduceOp::Sum).await;
            operations.push(posted.map_err(|error| error.failure)?);
        }
        let mut result = Vec::new();
        for mut operation in operations {
            operation.ready().await?;
            result = operation.result();
            operation.reclaim().await?;
        }
        let sum: i64 = values.iter().sum();
        assert!(result == sum.to_le_bytes().repeat(elements), "a wrong sum");
        Ok(result)
    }

    pub fn epoch(&self) -> Epoch {
        self.0[0].epoch()
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        for gateway in &mut self.gateways {
            let _ = gateway.process.kill();
            let _ = gateway.process.wait();
        }
    }
}

impl Log {
    /// The first line with that in it, once it is there.
    pub fn line_with(&self, wanted: &str) -> String {
        let mut text = self.text.lock().expect("no panic inside");
        loop {
            if let Some(line) = text.0.lines().find(|line| line.contains(wanted)) {
                return line.to_owned();
            }
            assert!(!text.1, "the log ended without `{wanted}`:\n{}", text.0);
            text = self.grown.wait(text).expect("no panic inside");
        }
    }

    /// All that was said so far.
    pub fn text(&self) -> String {
        self.text.lock().expect("no panic inside").0.clone()
    }

    fn read(&self, from: impl Read) {
        let mut from = BufReader::new(from);
        loop {
            let mut line = String::new();
            let ended = !matches!(from.read_line(&mut line), Ok(1..));
            let mut text = self.text.lock().expect("no panic inside");
            text.0.push_str(&line);
            text.1 = ended;
            self.grown.notify_all();
            if ended {
                return;
            }
        }
    }
}

/// A port for TCP, the first of as many for UDP as a gateway may take.
pub fn free_port() -> u16 {
    ports::block().expect("free ports").port()
}

impl Deployment {
    /// Writes files and keys; nothing runs yet.
    pub fn new(layout: &Layout<'_>) -> Self {
        let (a, b) = (free_port(), free_port());
        let region = |name: &str, ranks: u32, port: u16| {
            format!(
                "[region.{name}]\nranks = {ranks}\n[region.{name}.gateway.{name}-0]\n\
                 wan = \"127.0.0.1:{port}\"\negress = \"1 Gbit/s\"\ningress = \"1 Gbit/s\"\n"
            )
        };
        let fabric = format!(
            "name = \"two\"\nmtu = 1500\n{}{}[link.east-west]\nrate = \"{}\"\n\
             rtt = \"2 ms\"\n",
            region("east", layout.east, a),
            region("west", layout.west, layout.west_seen_at.unwrap_or(b)),
            layout.rate,
        );
        let mut files = vec![("fabric.toml".to_owned(), fabric)];
        let job = |name: &&str| {
            format!("[job.{name}]\ntoken = \"keys/{name}.token\"\nmemory = \"256 MiB\"\n")
        };
        let jobs: String = layout.jobs.iter().map(job).collect();
        let status = [free_port(), free_port()];
        for (name, status) in ["east", "west"].into_iter().zip(status) {
            let elsewhere = name == "west" && layout.west_seen_at.is_some();
            let listen = elsewhere.then(|| format!("listen = \"127.0.0.1:{b}\"\n"));
            let listen = listen.unwrap_or_default();
            files.push((
                format!("{name}.toml"),
                format!(
                    "fabric = \"fabric.toml\"\n[gateway.{name}-0]\nsocket = \"{name}.sock\"\n{listen}\
                     status = \"127.0.0.1:{status}\"\ncertificate = \"keys/{name}-0.pem\"\n\
                     key = \"keys/{name}-0.key\"\nca = \"keys/ca.pem\"\nmemory = \"256 MiB\"\n{jobs}"
                ),
            ));
        }
        let mut deployment = Self::of_files(&files, layout.jobs);
        deployment.west = SocketAddr::from((Ipv4Addr::LOCALHOST, b));
        deployment
    }

    /// One of these files, with keys; nothing runs yet, and it has no west.
    pub fn of_files(files: &[(String, String)], jobs: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("written");
        }
        let west = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let deployment = Self { folder, debug: false, gateways: vec![], west };
        deployment.certs("keys", jobs);
        deployment
    }

    /// Makes a CA, certificates and tokens in a folder.
    pub fn certs(&self, out: &str, jobs: &[&str]) {
        let output = Command::new(BINARY)
            .args(["certs", "--fabric"])
            .arg(self.path("fabric.toml"))
            .arg("--out")
            .arg(self.path(out))
            .args(jobs.iter().flat_map(|job| ["--job", job]))
            .output()
            .expect("runs");
        assert!(output.status.success(), "{output:?}");
    }

    /// The token of a job.
    pub fn token(&self, job: &str) -> Token {
        let text = std::fs::read_to_string(self.path(&format!("keys/{job}.token")));
        let text = text.expect("a token");
        let digits = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16);
        Token(std::array::from_fn(|at| digits(at).expect("hexadecimal")))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn run_gateways(&mut self) {
        for name in ["east", "west"] {
            self.run_gateway(name);
        }
    }

    pub fn run_gateway(&mut self, name: &str) {
        self.run_gateway_by(name, Command::new(BINARY));
    }

    /// As above, by a command that ends in the binary.
    pub fn run_gateway_by(&mut self, name: &str, mut binary: Command) {
        let mut process = binary
            .args(["run", "--config"])
            .arg(self.path(&format!("{name}.toml")))
            .env("LANDBRIDGE_LOG", if self.debug { "debug" } else { "info" })
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let log = Arc::<Log>::default();
        let (reader, stderr) = (Arc::clone(&log), process.stderr.take().expect("piped"));
        std::thread::spawn(move || reader.read(stderr));
        log.line_with("is up; trainers attach at");
        self.gateways.push(Running { process, log });
    }
}
