//! Reads the table that a workload writes to `WORKLOAD_PAUSE_FILE` before it pauses for inspection
//! (`workloads/workload.h`).

use std::collections::BTreeMap;
use std::ops::Range;

/// The table of a paused workload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paused {
    /// Process id.
    pub pid: u32,
    /// Threads of the OpenMP team, by thread number.
    pub threads: BTreeMap<u32, PausedThread>,
    /// Address ranges of the objects, by name.
    pub objects: BTreeMap<String, Range<u64>>,
}

/// One thread of the team.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PausedThread {
    /// The kernel's thread id.
    pub tid: u32,
    /// CPU at the time of the pause.
    pub cpu: u32,
}

impl Paused {
    /// Parses the table; an error is the line that could not be parsed.
    pub fn parse(text: &str) -> Result<Paused, String> {
        let mut paused = Paused::default();
        for line in text.lines() {
            paused.add(line).ok_or_else(|| line.to_owned())?;
        }
        Ok(paused)
    }

    fn add(&mut self, line: &str) -> Option<()> {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["pid", pid] => self.pid = pid.parse().ok()?,
            ["thread", index, tid, cpu] => {
                let thread = PausedThread {
                    tid: tid.parse().ok()?,
                    cpu: cpu.parse().ok()?,
                };
                self.threads.insert(index.parse().ok()?, thread);
            }
            ["object", name, address, size] => {
                let start = u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()?;
                let size: u64 = size.parse().ok()?;
                self.objects.insert(name.to_owned(), start..start + size);
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table() {
        let paused = Paused::parse("pid 7\nthread 1 9 3\nobject cvar 0x1000 32\n").unwrap();
        assert_eq!(paused.pid, 7);
        assert_eq!(paused.threads[&1], PausedThread { tid: 9, cpu: 3 });
        assert_eq!(paused.objects["cvar"], 0x1000..0x1020);
        assert_eq!(Paused::parse("thread 1\n"), Err("thread 1".into()));
    }
}
