//! Reads `/proc/PID/numa_maps`: number of pages of each mapping on each node.
//!
//! The kernel counts per mapping, so objects within one mapping can't be told apart here: [`crate::page_nodes`] asks
//! page by page.

use std::collections::BTreeMap;

/// One line of `numa_maps`: one mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Memory policy as the kernel writes it: `default`, `prefer:1`, `prefer (many):0-1`,
    /// `interleave:0-3`, …
    pub policy: String,
    /// Kind of memory behind the mapping.
    pub backing: Backing,
    /// Pages present on each node, in base pages; in huge pages for hugetlbfs.
    pub pages: BTreeMap<u32, u64>,
    /// Size of the pages counted, in KiB; absent where no page is present.
    pub page_kib: Option<u64>,
}

/// Kinds of memory behind a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Anonymous memory without a name.
    Anonymous,
    /// The heap that `brk` grows.
    Heap,
    /// The main thread's stack.
    Stack,
    /// A file, with the kernel's octal escapes.
    File(String),
}

impl Mapping {
    /// Pages present on all nodes.
    pub fn pages_present(&self) -> u64 {
        self.pages.values().sum()
    }
}

/// Parses the whole file; an error is the line that could not be parsed.
pub fn parse(text: &str) -> Result<Vec<Mapping>, String> {
    text.lines()
        .map(|line| parse_line(line).ok_or_else(|| line.to_owned()))
        .collect()
}

fn parse_line(line: &str) -> Option<Mapping> {
    let (start, rest) = line.split_once(' ')?;
    // This policy alone has a space in its name.
    let policy_length = match rest.strip_prefix("prefer (many)") {
        Some(nodes) => rest.len() - nodes.len() + nodes.find(' ').unwrap_or(nodes.len()),
        None => rest.find(' ').unwrap_or(rest.len()),
    };
    let (policy, fields) = rest.split_at(policy_length);
    let mut mapping = Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        policy: policy.to_owned(),
        backing: Backing::Anonymous,
        pages: BTreeMap::new(),
        page_kib: None,
    };
    for field in fields.split_whitespace() {
        match field.split_once('=') {
            None if field == "heap" => mapping.backing = Backing::Heap,
            None if field == "stack" => mapping.backing = Backing::Stack,
            None => {}
            Some(("file", path)) => mapping.backing = Backing::File(path.to_owned()),
            Some(("kernelpagesize_kB", size)) => mapping.page_kib = Some(size.parse().ok()?),
            Some((name, count)) => {
                let node = name.strip_prefix('N').and_then(|node| node.parse().ok());
                if let Some(node) = node {
                    mapping.pages.insert(node, count.parse().ok()?);
                }
            }
        }
    }
    Some(mapping)
}

/// The mapping that holds an address. `numa_maps` has no end addresses, so an address in a gap counts to the mapping
/// before it.
pub fn mapping_of(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    mappings
        .iter()
        .filter(|mapping| mapping.start <= address)
        .max_by_key(|mapping| mapping.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Copied from the guest (Linux 6.1): `cg` without a policy and under numactl's `--interleave=0-2`,
    // `--preferred-many=0-1` and `--localalloc`.
    const SAMPLE: &str = "\
564a829aa000 default file=/opt/cg mapped=1 N0=1 kernelpagesize_kB=4
564aa0758000 default heap anon=20 dirty=20 active=0 N3=20 kernelpagesize_kB=4
7f90ad811000 default
7f90ae814000 default anon=1143 dirty=1143 active=0 N0=1 N3=1142 kernelpagesize_kB=4
7f90af4b0000 default file=/usr/lib/x86_64-linux-gnu/libc.so.6 mapped=236 mapmax=4 N0=236 kernelpagesize_kB=4
7ffd10580000 default stack anon=4 dirty=4 active=1 N3=4 kernelpagesize_kB=4
7fff893c2000 interleave:0-2
7f9a368b1000 interleave:0-2 anon=1143 dirty=1143 active=0 N0=381 N1=381 N2=381 kernelpagesize_kB=4
555bb1c72000 prefer (many):0-1 heap anon=20 dirty=20 active=0 N0=20 kernelpagesize_kB=4
7fe87942d000 prefer (many):0-1
7f69077d3000 local anon=1143 dirty=1143 active=0 N1=1 N2=1142 kernelpagesize_kB=4
";

    #[test]
    fn real_mappings() {
        let mappings = parse(SAMPLE).unwrap();
        assert_eq!(mappings.len(), 11);
        assert_eq!(mappings[0].backing, Backing::File("/opt/cg".into()));
        assert_eq!(mappings[1].backing, Backing::Heap);
        assert_eq!(
            (mappings[2].pages_present(), mappings[2].page_kib),
            (0, None)
        );
        assert_eq!(mappings[3].pages, BTreeMap::from([(0, 1), (3, 1142)]));
        assert_eq!(mappings[3].page_kib, Some(4));
        assert_eq!(mappings[5].backing, Backing::Stack);
        assert_eq!(mappings[7].policy, "interleave:0-2");
        assert_eq!(mappings[7].pages_present(), 1143);
        assert_eq!(mappings[8].policy, "prefer (many):0-1");
        assert_eq!(mappings[8].pages, BTreeMap::from([(0, 20)]));
        assert_eq!(mappings[9].policy, "prefer (many):0-1");
        assert_eq!(mappings[10].policy, "local");
    }

    #[test]
    fn the_mapping_of_an_address() {
        let mappings = parse(SAMPLE).unwrap();
        assert_eq!(
            mapping_of(&mappings, 0x7f90ae814010).unwrap().start,
            0x7f90ae814000
        );
        assert_eq!(mapping_of(&mappings, 0x1000), None);
    }

    #[test]
    fn lines_that_are_none() {
        assert_eq!(
            parse("7f90 default N0=x\n"),
            Err("7f90 default N0=x".into())
        );
        assert_eq!(parse("zz default\n"), Err("zz default".into()));
    }
}
