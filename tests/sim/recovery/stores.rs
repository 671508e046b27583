//! Stores of jobs through whole gateways: one content everywhere, that no lost gateway and no cut
//! link changes.

use gateway::client::{Client, Store, StoreError};
use hier_collectives::ids::GatewayId;
use hier_collectives::store::{StoreFailureCode, StoreKey};
use scenarios::lab::mesh::Mesh;
use scenarios::{Lab, simulate};
use units::Span;

const ARENA: u64 = 1 << 20;
/// 60 s: the time in which lost gateways and links are noticed, and the store goes on.
const NOTICED: Span = Span::from_secs(60);

/// Three regions with three, one and two ranks, and everyone's store.
async fn three_regions() -> (Lab, Vec<Client>, Vec<Store>) {
    let lab = Mesh::of_ranks(&[3, 1, 2]).start(5).await;
    let clients = lab.clients(ARENA).await;
    let stores = clients.iter().map(Client::store).collect();
    (lab, clients, stores)
}

/// Returns the kind of failure of a request that has failed.
fn code<T: std::fmt::Debug>(outcome: Result<T, StoreError>) -> StoreFailureCode {
    match outcome {
        Err(StoreError::Failed(failure)) => failure.code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_ranks_share_the_store_of_their_job() {
    simulate(async {
        let (lab, _clients, stores) = three_regions().await;
        let waiting = tokio::spawn({
            let store = stores[5].clone();
            async move { store.get("who").await }
        });
        lab.sleep(Span::from_secs(20)).await;
        assert!(!waiting.is_finished(), "nobody has set it");
        let began = lab.host.now();
        stores[0].set("who", b"rank 0").await.expect("set");
        assert_eq!(waiting.await.expect("no panic").expect("there now"), b"rank 0");
        // There and back over the longest link, and what timers add.
        let took = lab.host.now().since(began);
        assert!(took < Span::from_ms(2 * 60 + 20), "{took}");
        for store in &stores {
            // All gateways hear soon that all of them hold the last change.
            lab.sleep(Span::from_secs(1)).await;
            let began = lab.host.now();
            assert_eq!(store.get("who").await.expect("there"), b"rank 0");
            let took = lab.host.now().since(began);
            assert!(took < Span::from_ms(1), "a read crossed a link in {took}");
            store.add("count", 2).await.expect("added");
        }
        assert_eq!(stores[4].add("count", 0).await.expect("read"), 12);
        let found = stores[3].compare_set("who", b"rank 0", b"rank 3").await.expect("compared");
        assert_eq!(found, b"rank 3");
        let values = stores[1].multi_get(["count", "who"]).await.expect("there");
        assert_eq!(values, [b"12".to_vec(), b"rank 3".to_vec()]);
        stores[2].append("who", b"!").await.expect("appended");
        stores[2].multi_set([("a/1", &b"x"[..]), ("a/2", b"y")]).await.expect("set");
        let listed = stores[5].list_keys("a/").await.expect("listed");
        assert_eq!(listed, ["a/1", "a/2"].map(StoreKey::from));
        assert!(stores[0].check(["a/1", "who"]).await.expect("checked"));
        assert!(stores[0].delete_key("a/1").await.expect("deleted"));
        assert!(!stores[5].check(["a/1", "who"]).await.expect("checked"));
        assert_eq!(stores[5].num_keys().await.expect("counted"), 3);
        assert_eq!(stores[5].get("who").await.expect("there"), b"rank 3!");
        let failure = stores[1].add("who", 1).await;
        assert_eq!(code(failure), StoreFailureCode::Refused);
        assert!(matches!(stores[1].set("", b"").await, Err(StoreError::Request(_))));
    });
}

#[test]
fn each_item_of_a_queue_reaches_one_rank() {
    simulate(async {
        let (_lab, _clients, stores) = three_regions().await;
        let popping = stores[1..].iter().cloned().map(|store| {
            tokio::spawn(async move {
                let mut got = Vec::new();
                for _ in 0..4 {
                    got.push(store.queue_pop("work").await.expect("an item"));
                }
                got
            })
        });
        let popping: Vec<_> = popping.collect();
        for item in 0..20_u8 {
            stores[0].queue_push("work", &[item]).await.expect("pushed");
        }
        let mut all = Vec::new();
        for popped in popping {
            all.extend(popped.await.expect("no panic"));
        }
        all.sort();
        assert_eq!(all, (0..20).map(|item| vec![item]).collect::<Vec<_>>());
        assert_eq!(stores[3].queue_len("work").await.expect("counted"), 0);
        let short = stores[3].with_timeout(Span::from_secs(3));
        assert_eq!(code(short.queue_pop("work").await), StoreFailureCode::TimedOut);
    });
}

#[test]
fn a_store_survives_the_loss_of_each_gateway() {
    simulate(async {
        let (mut lab, mut clients, _) = three_regions().await;
        let first_ranks = [0, 3, 4];
        let mut sum = 0;
        for lost in 0..3_usize {
            let gateway = GatewayId(lost as u16);
            let other = first_ranks[(lost + 1) % 3];
            let key = format!("before {lost}");
            clients[other].store().set(&key, &vec![lost as u8; 20_000]).await.expect("set");
            lab.set_outage_from(gateway, true);
            lab.stop_gateway(gateway).await;
            let short = clients[other].store().with_timeout(Span::from_secs(3));
            let began = lab.host.now();
            assert_eq!(short.get(&key).await.expect("read").len(), 20_000, "reads go on");
            assert_eq!(code(short.add("sum", 1).await), StoreFailureCode::Unconfirmed);
            let took = lab.host.now().since(began);
            assert!(took < Span::from_ms(3_010), "{took}");
            let adding = tokio::spawn({
                let store = clients[other].store();
                async move { store.add("sum", 10).await }
            });
            lab.sleep(Span::from_secs(5)).await;
            lab.set_outage_from(gateway, false);
            lab.start_gateway(gateway).await;
            // A command whose outcome was unknown comes first, if it has reached the leader.
            sum += if lost == 0 { 10 } else { 11 };
            assert_eq!(adding.await.expect("no panic").expect("added"), sum);
            for (rank, client) in clients.iter_mut().enumerate() {
                if client.disconnect_reason().is_some() {
                    *client = lab.client(rank as u32, ARENA).await;
                }
                let store = client.store().with_timeout(NOTICED);
                assert_eq!(store.get(&key).await.expect("kept").len(), 20_000);
                assert_eq!(store.get("sum").await.expect("kept"), sum.to_string().into_bytes());
            }
        }
        assert_eq!(clients[0].store().num_keys().await.expect("counted"), 4);
    });
}

#[test]
fn no_half_of_a_cut_fabric_changes_the_store() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1]).start(7).await;
        let clients = lab.clients(ARENA).await;
        let stores: Vec<Store> = clients.iter().map(Client::store).collect();
        stores[0].set("key", b"both").await.expect("set");
        lab.set_outage(true);
        let short = Span::from_secs(20);
        for store in &stores {
            let outcome = store.with_timeout(short).set("key", b"one half").await;
            let Err(StoreError::Failed(failure)) = outcome else { panic!("{outcome:?}") };
            assert_eq!(failure.code, StoreFailureCode::Unconfirmed);
            assert!(failure.text.contains("waited 20 s for gateway"), "{failure}");
        }
        assert_eq!(stores[1].get("key").await.expect("read"), b"both");
        lab.set_outage(false);
        lab.sleep(NOTICED).await;
        stores[1].set("key", b"again").await.expect("set");
        for store in &stores {
            assert_eq!(store.get("key").await.expect("read"), b"again");
        }
    });
}
