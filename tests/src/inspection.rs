//! Results of `tests/guest/inspect` for a paused workload.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::case::{repository, workload};
use crate::guest::Guest;
use crate::numa_maps::{self, Mapping};
use crate::page_nodes::{PageNodes, middle_of, share_of};
use crate::paused::Paused;

/// Nodes of the pages of a workload's objects at its end.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// The table that the workload wrote.
    pub paused: Paused,
    /// The kernel's page counts per mapping.
    pub numa_maps: Vec<Mapping>,
    /// Node of each page, by object.
    pub pages: BTreeMap<String, PageNodes>,
    /// Standard output of the command.
    pub stdout: String,
}

impl Inspection {
    /// A shell command that runs `command` (a workload, or nearpage running one) and leaves an inspection in `folder`.
    pub fn command(folder: &str, command: &str) -> String {
        let inspect = repository().join("tests/guest/inspect");
        let pagenodes = workload("pagenodes");
        format!(
            "PAGENODES={} {} {folder} {command}\n",
            pagenodes.display(),
            inspect.display()
        )
    }

    /// Reads an inspection's folder; an error names the file that can't be read or parsed.
    pub fn read(folder: &Path) -> Result<Inspection, String> {
        let text = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let in_file = |name: &str| {
            let path = folder.join(name);
            move |line: String| format!("{}: not understood: {line}", path.display())
        };
        let paused = Paused::parse(&text("paused")?).map_err(in_file("paused"))?;
        let numa_maps = numa_maps::parse(&text("numa_maps")?).map_err(in_file("numa_maps"))?;
        let mut pages = BTreeMap::new();
        for name in paused.objects.keys() {
            let file = format!("pages/{name}");
            let nodes = PageNodes::parse(&text(&file)?).map_err(in_file(&file))?;
            pages.insert(name.clone(), nodes);
        }
        Ok(Inspection {
            paused,
            numa_maps,
            pages,
            stdout: text("stdout")?,
        })
    }

    /// Share of an object's pages on the node of their thread, if thread k of T uses block k of T blocks of the object.
    /// Panics if the workload has no such object.
    pub fn in_blocks(&self, object: &str, guest: &Guest) -> f64 {
        let range = &self.paused.objects[object];
        self.in_cyclic_blocks(object, range.end - range.start, guest)
    }

    /// Like [`Inspection::in_blocks`], if thread k of T uses block k of T blocks of every period of `period_bytes`.
    pub fn in_cyclic_blocks(&self, object: &str, period_bytes: u64, guest: &Guest) -> f64 {
        let range = &self.paused.objects[object];
        let team = self.paused.threads.len() as u32;
        self.pages[object].share_where(|page| {
            let middle = middle_of(range, page);
            let period = (middle - range.start) / period_bytes;
            let start = range.start + period * period_bytes;
            let part = start..range.end.min(start + period_bytes);
            let thread = self.paused.threads.get(&share_of(&part, team, middle))?;
            guest.node_of_cpu(thread.cpu)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads, on the first and the last CPU of four nodes; eight pages of an object.
    fn inspection(nodes: &str) -> Inspection {
        Inspection {
            paused: Paused::parse("pid 1\nthread 0 1 0\nthread 1 2 3\nobject o 0x1010 32768\n")
                .unwrap(),
            numa_maps: Vec::new(),
            pages: BTreeMap::from([("o".into(), PageNodes::parse(nodes).unwrap())]),
            stdout: String::new(),
        }
    }

    #[test]
    fn blocks() {
        let guest = Guest::four_nodes();
        let placed = inspection("0x1000 4 0\n0x5000 5 3\n");
        assert_eq!(placed.in_blocks("o", &guest), 1.0);
        assert_eq!(inspection("0x1000 8 0\n").in_blocks("o", &guest), 0.5);
    }

    #[test]
    fn cyclic_blocks() {
        let guest = Guest::four_nodes();
        let placed = inspection("0x1000 2 0\n0x3000 2 3\n0x5000 2 0\n0x7000 2 3\n");
        assert_eq!(placed.in_cyclic_blocks("o", 16384, &guest), 1.0);
        assert_eq!(placed.in_cyclic_blocks("o", 32768, &guest), 0.5);
    }
}
