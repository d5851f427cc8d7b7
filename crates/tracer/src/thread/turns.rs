//! Work of a thread between two turns: it waits for others, moves to another CPU, and flushes unmapped pages.

use std::sync::atomic::Ordering::Relaxed;

use nearpage_wire::trace::{Counter, Record};

use super::Thread;
use crate::serial::Step;

impl Thread {
    /// Pauses the thread: its turn is over, or pages were unmapped.
    #[cold]
    pub(super) fn pause(&mut self) {
        if std::mem::take(&mut self.idle) {
            self.wakes();
        }
        self.catch_up();
        self.follow_moves();
        if self.instructions >= self.stop {
            let spun = self.turn_began_with == (self.stores, self.misses());
            if spun {
                self.count(Counter::SpunQuanta);
            }
            let took = std::mem::take(&mut self.took);
            let lockstep = &self.process.lockstep;
            let turn = lockstep.next(self.member, self.time(), !spun && !took);
            let waited = self.go_on(turn);
            if took && self.number != 0 && !self.process.setup.serial {
                self.let_earlier_go_first();
            }
            self.turn_began_with = (self.stores, self.misses());
            self.record_wait(waited);
        }
        self.follow_unmappings();
    }

    /// Records how long the thread has waited, unless that is 0.
    fn record_wait(&mut self, waited_instructions: u64) {
        if waited_instructions > 0 {
            self.record(&Record::Preempted {
                waited_instructions,
            });
        }
    }

    /// Moves the thread to another CPU, if it is time for that.
    fn follow_moves(&mut self) {
        let now = self.time();
        while let Some((_, position)) = self.moves.pop_if(|(time, _)| *time <= now) {
            let Some(cpu) = self.process.caches.cpu(position) else {
                continue;
            };
            let turn = self.process.lockstep.move_to(self.member, position, now);
            (self.cpu, self.position) = (cpu, position);
            let waited = self.go_on(turn);
            self.record(&Record::Move {
                cpu: position as u32,
            });
            self.record_wait(waited);
        }
    }

    /// Returns when the threads created earlier have had their turns.
    pub(super) fn let_earlier_go_first(&mut self) {
        let lockstep = &self.process.lockstep;
        let joined = lockstep.joined();
        lockstep.after_earlier(self.member);
        self.first_until = (self.stop, joined);
    }

    /// Removes unmapped pages from its CPU's TLBs.
    pub fn follow_unmappings(&self) {
        let (process, cpu) = (self.process, self.cpu);
        let _turn = process.serial.as_ref().map(|serial| serial.turn());
        let seen = cpu.unmappings_seen.load(Relaxed);
        let count = process.unmappings.since(seen, |pages| {
            if let Some(serial) = &process.serial {
                let words = [pages.start, pages.end];
                serial.add(Step::Flush, self.position, self.number, words);
            }
            let second = cpu.tlb_second.iter();
            for tlb in [&cpu.tlb].into_iter().chain(&cpu.tlb_fetch).chain(second) {
                tlb.flush(pages.clone());
            }
        });
        cpu.unmappings_seen.store(count, Relaxed);
    }
}
