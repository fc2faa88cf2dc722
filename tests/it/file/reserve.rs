//! A reserve that cannot be made while the process runs. What the reserve is for is in `full`.

use std::time::Duration;

use super::full::{Full, used};
use crate::support::disk::FaultyDisk;
use crate::support::{eventually, stores};

/// Room on the disk does not help then, and all claims are refused.
#[tokio::test]
async fn a_process_whose_reserve_cannot_be_made_is_not_ready_until_it_can() {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    let full = Full::with_little_room(&disk, directory.path());
    let (_, refused) = full.fill("1h").await;
    assert_eq!(refused.expect("the process lives").1["code"], "store_full");
    let reserve = directory.path().join("reserve");
    std::fs::create_dir(&reserve).unwrap();
    disk.limit(u64::MAX / 2);
    eventually("it is not ready", async || {
        let (status, said) = full.said("/readyz?verbose").await;
        (status == 503 && said.contains("the reserve on the disk cannot be made")).then_some(())
    })
    .await;
    assert_eq!(full.grants().await, None);
    std::fs::remove_dir(&reserve).unwrap();
    eventually("claims are admitted", async || full.grants().await).await;
    assert_eq!(full.said("/readyz").await.0, 200);
}

/// It would take from other programs what little room there is, and wear out the disk.
#[tokio::test]
async fn a_disk_with_too_little_room_for_the_reserve_is_not_written_to_find_that_out() {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    let full = Full::with_little_room(&disk, directory.path());
    let (_, refused) = full.fill("1h").await;
    assert_eq!(refused.expect("the process lives").1["code"], "store_full");
    // Room for half of the reserve.
    disk.limit(used(directory.path()) + 4 * 1024 * 1024);
    let before = full.bytes_written();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let written = full.bytes_written() - before;
    assert!(written < 1024 * 1024, "{written} bytes in some tries");
}
