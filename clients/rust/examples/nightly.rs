//! A job that all machines start and one of them runs. It takes `LEASEHOLD_URL` and `LEASEHOLD_API_KEY_FILE`.

use std::time::Duration;

use leasehold_client::{Client, Error};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::from_env()?;
    // min_hold keeps the lock from machines whose clocks are up to a minute late.
    let claim = client
        .lock("nightly-report")
        .wait(Duration::ZERO)
        .min_hold(Duration::from_secs(60));
    let lease = match claim.await {
        Err(Error::Held(problem)) => {
            println!("another machine runs it: {}", problem.detail);
            return Ok(());
        }
        acquired => acquired?,
    };
    lease
        .while_held(write_report(lease.fencing_token()))
        .await?;
    lease.release().await?;
    Ok(())
}

async fn write_report(fencing_token: u64) {
    for page in 0..3 {
        println!("page {page}, written with fencing token {fencing_token}");
    }
}
