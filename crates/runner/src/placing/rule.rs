//! Text on the result of one rule: placed objects, and problems.

use std::collections::BTreeSet;
use std::io;

use nearpage_amount::{bytes, counted, time};
use nearpage_report::printable;

use super::summary::{Failure, RuleSummary, UnmatchedStatus};

impl RuleSummary {
    /// Text on the placed objects.
    pub(super) fn done(&self) -> String {
        let mut done = match self.objects {
            _ if !self.processes.is_empty() => self.unmatched_done(),
            0 if self.left > 0 => format!(
                "{} left {}, as planned",
                counted(self.left, "object"),
                self.left_where()
            ),
            // Early objects that were placed at their allocation are counted in `objects` as well.
            0 if self.waited + self.early > 0 => format!(
                "{} recognised, none placed",
                counted(self.waited + self.early, "object")
            ),
            0 => "matched nothing".to_owned(),
            count => format!(
                "placed {}, {} in {}",
                counted(count, "object"),
                bytes(self.bytes),
                counted(self.pages, "page")
            ),
        };
        if self.switched > 0 && self.objects > 0 {
            let which = match self.switched == self.objects {
                true => String::new(),
                false => format!("{} of them ", self.switched),
            };
            done += &format!(", {which}{}", self.moved_at_switch());
        }
        done
    }

    /// Text on unmatched memory.
    fn unmatched_done(&self) -> String {
        let count = |status| self.processes.get(&status).map_or(0, BTreeSet::len) as u64;
        let words = [
            (UnmatchedStatus::Set, "policy set in"),
            (UnmatchedStatus::Left, "left to first touch, as planned, in"),
            (
                UnmatchedStatus::Waits,
                "left to first touch, as no second thread was created, in",
            ),
            (UnmatchedStatus::Failed, "could not be placed in"),
        ];
        let said = words
            .into_iter()
            .filter(|&(status, _)| count(status) > 0)
            .map(|(status, words)| {
                let switched = match status {
                    UnmatchedStatus::Set if self.switched > 0 => {
                        format!(" {}", self.moved_at_switch())
                    }
                    _ => String::new(),
                };
                format!("{words} {}{switched}", counted(count(status), "process"))
            });
        said.collect::<Vec<_>>().join("; ")
    }

    /// Words for the place of objects without a placement.
    fn left_where(&self) -> &'static str {
        match self.phase {
            Some(_) => "where placed before",
            None => "to first touch",
        }
    }

    /// The event at which waiting objects are placed.
    fn event(&self) -> String {
        match &self.phase {
            Some(function) => format!("`{}` was first executed", printable(function)),
            None => "the second thread was created".to_owned(),
        }
    }

    fn moved_at_switch(&self) -> String {
        format!(
            "when {}: {} moved, {}",
            self.event(),
            counted(self.switched_moved, "page"),
            time(self.switched_ns as f64)
        )
    }

    /// Problems of the rule, as text.
    pub(super) fn troubles(&self) -> Vec<String> {
        let mut troubles = Vec::new();
        let mut tell = |count: u64, words: &str| {
            if count > 0 {
                troubles.push(format!("{count} {words}"));
            }
        };
        tell(self.weak, "recognised only by function, line and size");
        if self.objects > 0 {
            tell(self.left, &format!("left {}", self.left_where()));
        }
        let (waited, early) = match &self.phase {
            Some(function) => (
                format!(
                    "left where placed before: `{}` was not seen to be executed while they were there",
                    printable(function)
                ),
                "left where placed before: pages that are there can't be moved by touching them",
            ),
            None => (
                "left to first touch: no second thread was created while they were there"
                    .to_owned(),
                "placed at their allocation, not when the second thread was created: pages that are there can't be \
                 moved",
            ),
        };
        tell(self.waited, &waited);
        tell(self.early, early);
        tell(self.too_small, "too small to place (under two pages)");
        tell(
            self.no_room,
            "not placed: no mappings left, or no room to remember them",
        );
        tell(
            self.outside,
            "outside their module: the plan is of another build",
        );
        for (count, noun, words) in [
            (
                self.coarsened,
                "piece",
                "made coarser to stay within the mappings allowed",
            ),
            (
                self.missing_node_pages,
                "page",
                "for a node that is not there",
            ),
            (
                self.pinned_pages,
                "page",
                "pinned where they are, by a device or the kernel (RDMA, vfio, io_uring buffers): they can't be moved",
            ),
            (
                self.untouched,
                "page",
                "not touched: unused by the program, beyond a quarter of the available memory, or not writable",
            ),
        ] {
            if count > 0 {
                troubles.push(format!("{} {words}", counted(count, noun)));
            }
        }
        for Failure { call, errno, count } in &self.failures {
            let reason = io::Error::from_raw_os_error(*errno);
            troubles.push(format!("{count} × {call} failed: {reason}"));
        }
        if self.ignored {
            troubles.push("the rule is invalid, and the preload library ignored it".to_owned());
        }
        troubles
    }
}
