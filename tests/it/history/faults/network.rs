//! Faults of the network between processes and Redis.

use tokio::time::sleep;

use super::super::record::Effect;
use super::{Fault, Nemesis, Struck};
use crate::support::proxy::Proxy;

impl Nemesis<'_> {
    /// Strikes the connections of one process. A node of a quorum may also lose those of all processes.
    pub(super) async fn network(&mut self, fault: Fault) -> Struck {
        let process = self.any_process();
        let lasts = self.chance.millis(200, 3_500);
        let late = self.chance.millis(500, 3_000);
        let is_for_all = self.fleet.is_quorum() && self.chance.percent(50);
        let from = self.recorder.now();
        let proxies = &self.store().proxies;
        let proxies = match is_for_all {
            true => &proxies[..self.fleet.processes.len()],
            false => &proxies[process..=process],
        };
        let each = |strike: fn(&Proxy)| proxies.iter().for_each(strike);
        let before = observed(fault, proxies);
        match fault {
            Fault::Cut => {
                each(|proxy| proxy.refuse(true));
                each(Proxy::cut);
                sleep(lasts).await;
                each(|proxy| proxy.refuse(false));
            }
            Fault::Stall => {
                each(|proxy| proxy.stall(true));
                sleep(lasts).await;
                each(|proxy| proxy.stall(false));
            }
            Fault::LoseAnswers => {
                each(Proxy::swallow_replies);
                sleep(lasts).await;
                each(Proxy::pass_replies);
            }
            Fault::LoseRequests => {
                each(Proxy::lose_commands);
                sleep(lasts).await;
                each(Proxy::pass_commands);
            }
            _ => {
                each(Proxy::hold_back);
                // Short enough that the process has not given up when the connection is replaced.
                sleep(lasts / 4).await;
                proxies.iter().for_each(|proxy| proxy.deliver_late(late));
                sleep(late + lasts / 4).await;
            }
        }
        let happened = match fault {
            Fault::Cut => before,
            _ => observed(fault, proxies) - before,
        };
        Struck {
            process: (!is_for_all).then_some(process),
            ..self.struck(from, Effect::Away, happened)
        }
    }
}

/// The count for a fault: the effects so far, or the connections that are about to be cut.
fn observed(fault: Fault, proxies: &[Proxy]) -> u64 {
    let count = |proxy: &Proxy| match fault {
        Fault::Cut => proxy.open(),
        Fault::Stall => proxy.stalled(),
        Fault::LoseAnswers => proxy.swallowed(),
        Fault::LoseRequests => proxy.lost(),
        _ => proxy.late(),
    };
    proxies.iter().map(|proxy| count(proxy) as u64).sum()
}
