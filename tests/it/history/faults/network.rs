//! Faults of the network between one process and Redis.

use tokio::time::sleep;

use super::super::record::Effect;
use super::{Fault, Nemesis, Struck};
use crate::support::proxy::Proxy;

impl Nemesis<'_> {
    pub(super) async fn network(&mut self, fault: Fault) -> Struck {
        let process = self.any_process();
        let lasts = self.chance.millis(200, 3_500);
        let late = self.chance.millis(500, 3_000);
        let from = self.recorder.now();
        let proxy = &self.store().proxies[process];
        let before = observed(fault, proxy);
        match fault {
            Fault::Cut => {
                proxy.refuse(true);
                proxy.cut();
                sleep(lasts).await;
                proxy.refuse(false);
            }
            Fault::Stall => {
                proxy.stall(true);
                sleep(lasts).await;
                proxy.stall(false);
            }
            Fault::LoseAnswers => {
                proxy.swallow_replies();
                sleep(lasts).await;
                proxy.pass_replies();
            }
            Fault::LoseRequests => {
                proxy.lose_commands();
                sleep(lasts).await;
                proxy.pass_commands();
            }
            _ => {
                proxy.hold_back();
                // Short enough that the process has not given up when the connection is replaced.
                sleep(lasts / 4).await;
                proxy.deliver_late(late);
                sleep(late + lasts / 4).await;
            }
        }
        let happened = match fault {
            Fault::Cut => before,
            _ => observed(fault, &self.store().proxies[process]) - before,
        };
        Struck {
            process: Some(process),
            ..self.struck(from, Effect::Away, happened)
        }
    }
}

/// The count for a fault: the effects so far, or the connections that are about to be cut.
fn observed(fault: Fault, proxy: &Proxy) -> u64 {
    let count = match fault {
        Fault::Cut => proxy.open(),
        Fault::Stall => proxy.stalled(),
        Fault::LoseAnswers => proxy.swallowed(),
        Fault::LoseRequests => proxy.lost(),
        _ => proxy.late(),
    };
    count as u64
}
