//! Tests of the proxy, with a server that echoes every byte.

use super::*;
use crate::support::eventually;

async fn echo() -> (Proxy, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let target = listener.local_addr().expect("it is bound").to_string();
    let received = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&received);
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.expect("it listens");
            let counter = Arc::clone(&counter);
            tokio::spawn(async move {
                while let Ok(byte) = client.read_u8().await {
                    counter.fetch_add(1, SeqCst);
                    drop(client.write_u8(byte).await);
                }
            });
        }
    });
    (Proxy::start(target).await, received)
}

async fn connected(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address).await.expect("it listens")
}

#[tokio::test]
async fn it_forwards_until_it_is_cut() {
    let (proxy, _) = echo().await;
    let mut client = connected(&proxy).await;
    client.write_u8(7).await.expect("it is open");
    assert_eq!(client.read_u8().await.expect("an echo"), 7);
    assert_eq!((proxy.open(), proxy.accepted()), (1, 1));
    proxy.cut();
    client.read_u8().await.expect_err("it was cut");
    eventually("it counts down", async || (proxy.open() == 0).then_some(())).await;
}

#[tokio::test]
async fn connections_end_at_their_next_command_and_later_ones_do_not() {
    let (proxy, received) = echo().await;
    let mut old = connected(&proxy).await;
    eventually("it is open", async || (proxy.open() == 1).then_some(())).await;
    proxy.end_at_next_command();
    let mut new = connected(&proxy).await;
    new.write_u8(7).await.expect("it is open");
    assert_eq!(new.read_u8().await.expect("an echo"), 7);
    old.write_u8(7).await.expect("it is open");
    old.read_u8().await.expect_err("it has ended");
    assert_eq!(received.load(SeqCst), 1);
}

#[tokio::test]
async fn a_refused_connection_is_closed_at_once() {
    let (proxy, _) = echo().await;
    proxy.refuse(true);
    connected(&proxy).await.read_u8().await.expect_err("closed");
    assert_eq!(proxy.accepted(), 0);
}

#[tokio::test]
async fn a_swallowed_reply_never_arrives_although_its_command_did() {
    let (proxy, received) = echo().await;
    let mut client = connected(&proxy).await;
    proxy.swallow_replies();
    client.write_u8(7).await.expect("it is open");
    eventually("swallowed", async || (proxy.swallowed() > 0).then_some(())).await;
    assert_eq!(received.load(SeqCst), 1);
    proxy.pass_replies();
    client
        .read_u8()
        .await
        .expect_err("lost bytes end the stream");
    let mut client = connected(&proxy).await;
    client.write_u8(8).await.expect("it is open");
    assert_eq!(client.read_u8().await.expect("an echo"), 8);
}

#[tokio::test]
async fn a_command_that_is_held_back_arrives_after_its_connection_was_cut() {
    let (proxy, received) = echo().await;
    let mut client = connected(&proxy).await;
    proxy.hold_back();
    client.write_u8(7).await.expect("it is open");
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.deliver_late(Duration::from_millis(50));
    client.read_u8().await.expect_err("it was cut");
    assert_eq!(received.load(SeqCst), 0);
    eventually("delivered", async || (proxy.late() > 0).then_some(())).await;
    assert_eq!(received.load(SeqCst), 1);
}

#[tokio::test]
async fn a_lost_command_never_arrives_and_a_stalled_one_does() {
    let (proxy, received) = echo().await;
    let mut client = connected(&proxy).await;
    proxy.lose_commands();
    client.write_u8(7).await.expect("it is open");
    eventually("lost", async || (proxy.lost() > 0).then_some(())).await;
    proxy.pass_commands();
    client.read_u8().await.expect_err("it was cut");
    assert_eq!(received.load(SeqCst), 0);
    let mut client = connected(&proxy).await;
    proxy.stall(true);
    client.write_u8(8).await.expect("it is open");
    eventually("stalled", async || (proxy.stalled() > 0).then_some(())).await;
    proxy.stall(false);
    assert_eq!(client.read_u8().await.expect("an echo"), 8);
}
