//! The store: values, lists, counters and queues that three ranks share.

use super::RANKS;
use gateway::client::{Client, Store, StoreError};
use hier_collectives::ids::RankId;
use hier_collectives::store::limits::VALUE_BYTES_MAX;
use hier_collectives::store::{StoreFailureCode, StoreKey};
use units::Span;

/// Uses the store from all three ranks.
pub async fn use_store(job: Client) {
    let store = job.store().with_timeout(Span::from_secs(60));
    set_and_get(&job, &store).await;
    use_lists(&job, &store).await;
    change_together(&job, &store).await;
    use_queues(&job, &store).await;
    fail(&store).await;
}

/// Waits for all ranks.
async fn meet(job: &Client) {
    job.barrier().await.expect("all come");
}

/// Rank 1 sets what the others wait for: any bytes, none, and as many as there may be.
async fn set_and_get(job: &Client, store: &Store) {
    let most = vec![b'x'; VALUE_BYTES_MAX];
    let pairs = [("bytes", &[0, 1, 255, 0][..]), ("none", &[]), ("most", &most)];
    if job.rank() == RankId(1) {
        for (key, value) in pairs {
            store.set(key, value).await.expect("set");
        }
    }
    for (key, value) in pairs {
        assert!(store.get(key).await.expect("set") == value, "another value of {key}");
    }
}

/// Rank 2 sets several keys at once, and all ask for several.
async fn use_lists(job: &Client, store: &Store) {
    let keys = ["list/b", "list/é", "list/a"];
    meet(job).await;
    if job.rank() == RankId(2) {
        let before = store.num_keys().await.expect("counted");
        assert!(!store.check(keys).await.expect("checked"), "nothing is there yet");
        let values: [&[u8]; 3] = [b"two", b"", b"1"];
        store.multi_set(keys.into_iter().zip(values)).await.expect("set");
        assert_eq!(store.num_keys().await.expect("counted"), before + 3);
    }
    store.wait(keys).await.expect("set");
    assert!(store.check(keys).await.expect("checked"), "all are there");
    let values = store.multi_get(keys).await.expect("set");
    assert_eq!(values, [&b"two"[..], b"", b"1"]);
    let listed = store.list_keys("list/").await.expect("listed");
    let sorted = ["list/a", "list/b", "list/é"];
    assert_eq!(listed, sorted.map(StoreKey::from));
    assert!(store.list_keys("nobody's").await.expect("listed").is_empty());
    meet(job).await;
    if job.rank() == RankId(2) {
        assert!(store.delete_key("list/a").await.expect("deleted"));
        assert!(!store.delete_key("list/a").await.expect("answered"), "it is gone");
    }
}

/// Counts together, takes turns, and appends.
async fn change_together(job: &Client, store: &Store) {
    let mine = [b'a' + u8::try_from(job.rank().0).expect("small")];
    for _ in 0..10 {
        let sum = store.add("counter", 2).await.expect("added");
        assert!((2..=60).contains(&sum) && sum % 2 == 0, "{sum}");
    }
    store.append("letters", &mine).await.expect("appended");
    let winner = store.compare_set("winner", b"", &mine).await.expect("compared");
    store.add("winners", (winner == mine).into()).await.expect("added");
    meet(job).await;
    assert_eq!(store.get("counter").await.expect("set"), b"60");
    assert_eq!(store.get("winners").await.expect("set"), b"1");
    let mut letters = store.get("letters").await.expect("set");
    letters.sort_unstable();
    assert_eq!(letters, b"abc");
    assert_eq!(store.compare_set("counter", b"59", b"0").await.expect("compared"), b"60");
    let refused = store.add("letters", 1).await;
    assert_eq!(code(refused), StoreFailureCode::Refused);
}

/// Rank 0 waits for an item that rank 2 pushes later, while it uses the store and the job.
async fn use_queues(job: &Client, store: &Store) {
    let waiting = store.clone();
    let taking = (job.rank() == RankId(0))
        .then(|| tokio::spawn(async move { waiting.queue_pop("work").await }));
    assert_eq!(store.get("none").await.expect("set"), b"");
    meet(job).await;
    if job.rank() == RankId(2) {
        store.queue_push("work", b"item").await.expect("pushed");
    }
    let Some(taking) = taking else { return };
    assert_eq!(taking.await.expect("no panic").expect("pushed"), b"item");
    assert_eq!(store.queue_len("work").await.expect("counted"), 0);
    assert_eq!(store.queue_try_pop("work").await.expect("answered"), None);
    for (length, item) in [(1, &b""[..]), (2, b"b")] {
        assert_eq!(store.queue_push("own", item).await.expect("pushed"), length);
    }
    assert_eq!(store.queue_try_pop("own").await.expect("answered").as_deref(), Some(&b""[..]));
    assert_eq!(store.queue_pop("own").await.expect("there"), b"b");
}

/// Waits for what never comes, and asks for what is not allowed.
async fn fail(store: &Store) {
    let hasty = store.with_timeout(Span::from_ms(50));
    assert_eq!(code(hasty.get("missing").await), StoreFailureCode::TimedOut);
    assert_eq!(code(hasty.wait(["none", "missing"]).await), StoreFailureCode::TimedOut);
    assert_eq!(code(hasty.queue_pop("missing").await), StoreFailureCode::TimedOut);
    let refused = store.set("long", &vec![0; VALUE_BYTES_MAX + 1]).await;
    assert!(matches!(refused, Err(StoreError::Request(_))), "{refused:?}");
    assert!(!store.check(["long"]).await.expect("checked"), "nothing was set");
    let ranks = i64::from(RANKS);
    assert!(store.add("ends", 1).await.expect("added") <= ranks, "each rank comes here once");
}

/// Returns the code of a request that fails.
fn code<T: std::fmt::Debug>(outcome: Result<T, StoreError>) -> StoreFailureCode {
    match outcome {
        Err(StoreError::Failed(failure)) => failure.code,
        other => panic!("{other:?} instead of a failure"),
    }
}
