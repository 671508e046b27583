//! How fast virtual time runs: `cargo bench -p wan-sim --features virtual-net`.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures by the clock")]

#[path = "../tests/support/quic.rs"]
mod quic;

use quinn::congestion::CubicConfig;
use quinn::{Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig, VarInt};
use std::net::SocketAddr;
use std::sync::Arc;
use wan_sim::{LinkSpec, VirtualNet};

/// 200 MB over 10 Gbit/s, 50 ms round trip, in four streams.
const STREAMS: usize = 4;
const STREAM_BYTES: usize = 50_000_000;

fn main() {
    for _ in 0..3 {
        let began = std::time::Instant::now();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let (virtual_s, packets) = runtime.block_on(transfer());
        println!(
            "virtual {virtual_s:.3} s, real {:.3} s, {packets} packets there (wanted: real below \
             1 s)",
            began.elapsed().as_secs_f64()
        );
    }
}

async fn transfer() -> (f64, u64) {
    let (here, there) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:1".parse().unwrap());
    let link = LinkSpec::new("10 Gbit/s".parse().unwrap(), "25 ms".parse().unwrap()).unwrap();
    let net = VirtualNet::new();
    let ips = |one: SocketAddr, other: SocketAddr| (one.ip(), other.ip());
    let (a, b) = ips(here, there);
    net.connect(a, b, link, link, 1);
    let (mut client_config, mut server_config) = quic::tls();
    client_config.transport_config(transport());
    server_config.transport_config(transport());
    let endpoint = |at: SocketAddr, server: Option<ServerConfig>| {
        let socket = net.bind(at).unwrap();
        let config = EndpointConfig::default();
        Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(TokioRuntime)).unwrap()
    };
    let server = endpoint(there, Some(server_config));
    let client = endpoint(here, None);
    let began = tokio::time::Instant::now();
    let receiver = tokio::spawn(async move {
        let connection = server.accept().await.unwrap().await.unwrap();
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let mut stream = connection.accept_uni().await.unwrap();
            streams.push(tokio::spawn(async move {
                let mut bytes = 0;
                while let Some(chunk) = stream.read_chunk(1 << 20, false).await.unwrap() {
                    bytes += chunk.bytes.len();
                }
                assert_eq!(bytes, STREAM_BYTES);
            }));
        }
        for stream in streams {
            stream.await.unwrap();
        }
    });
    let connection = client.connect_with(client_config, there, "wan").unwrap().await.unwrap();
    let data = bytes::Bytes::from(vec![0xa5; STREAM_BYTES]);
    for _ in 0..STREAMS {
        let (connection, data) = (connection.clone(), data.clone());
        tokio::spawn(async move {
            let mut stream = connection.open_uni().await.unwrap();
            stream.write_chunk(data).await.unwrap();
            stream.finish().unwrap();
        });
    }
    receiver.await.unwrap();
    (began.elapsed().as_secs_f64(), net.counters(a, b).unwrap().packets)
}

/// Windows of four bandwidth-delay products.
fn transport() -> Arc<TransportConfig> {
    let window = 250_000_000u32;
    let mut congestion = CubicConfig::default();
    congestion.initial_window(u64::from(window) / 4);
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(window))
        .receive_window(VarInt::from_u32(window))
        .send_window(u64::from(window))
        .congestion_controller_factory(Arc::new(congestion));
    Arc::new(transport)
}
