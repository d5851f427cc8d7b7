//! Restrictions of a process's memory: allowed nodes (cpusets), memory policies, huge pages.

use std::fs;
use std::path::Path;

use nearpage_files::memory_folder;
use nearpage_machine::{NodeId, NodeList};

/// Data about a process's memory in `/proc`. The default has no data and allows everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSpace {
    /// Nodes that the process's cpuset allows; `None`: unknown.
    pub allowed: Option<NodeList>,
    /// Mappings in order of address.
    pub mappings: Vec<Mapping>,
}

/// Memory policies under which pages are not moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RespectedPolicies {
    /// All policies that name nodes.
    #[default]
    All,
    /// Policies that allow no other nodes (`bind`). A policy that only prefers nodes may come from a plan with which
    /// the program is run.
    Strict,
}

/// A mapping with huge pages or a memory policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the end.
    pub end: u64,
    /// The mapping has a memory policy, so its pages stay where they are.
    pub has_own_policy: bool,
    /// Size of its huge pages; `None`: most of the mapping is in pages of the usual size.
    pub huge_bytes: Option<u64>,
}

/// Key in `status` of the nodes on which a process may have pages.
const ALLOWED: &str = "Mems_allowed_list:";

impl AddressSpace {
    /// Reads `status`, `smaps` and `numa_maps` of a process under `proc_root` (proc(5)). Files that cannot be read
    /// restrict nothing: the kernel checks every move.
    pub fn read(
        proc_root: &Path,
        pid: u32,
        huge_page_bytes: u64,
        respected: RespectedPolicies,
    ) -> Self {
        let folder = memory_folder(proc_root, pid);
        let file = |name: &str| {
            // Names of mapped files may contain any bytes.
            String::from_utf8_lossy(&fs::read(folder.join(name)).unwrap_or_default()).into_owned()
        };
        let status = file("status");
        let allowed = status.lines().find_map(|line| line.strip_prefix(ALLOWED));
        Self {
            allowed: allowed.and_then(|list| list.trim().parse().ok()),
            mappings: mappings(
                &file("smaps"),
                &file("numa_maps"),
                huge_page_bytes,
                respected,
            ),
        }
    }

    /// May the process have pages on this node?
    pub fn allows(&self, node: NodeId) -> bool {
        self.allowed
            .as_ref()
            .is_none_or(|allowed| allowed.contains(node))
    }

    /// Does the mapping of the page have a memory policy?
    pub fn has_own_policy(&self, address: u64) -> bool {
        self.mapping(address)
            .is_some_and(|mapping| mapping.has_own_policy)
    }

    /// Start and size of the page at an address: a huge page, or a page of `page_bytes`. Both sizes are powers of two.
    pub fn page(&self, address: u64, page_bytes: u64) -> (u64, u64) {
        if let Some(mapping) = self.mapping(address)
            && let Some(huge_bytes) = mapping.huge_bytes
        {
            let start = address & !(huge_bytes - 1);
            if start >= mapping.start && mapping.end - start >= huge_bytes {
                return (start, huge_bytes);
            }
        }
        (address & !(page_bytes - 1), page_bytes)
    }

    fn mapping(&self, address: u64) -> Option<&Mapping> {
        let after = self
            .mappings
            .partition_point(|mapping| mapping.end <= address);
        self.mappings
            .get(after)
            .filter(|mapping| mapping.start <= address)
    }
}

/// Mappings with huge pages or a respected policy, from the texts of `smaps` and `numa_maps`.
fn mappings(
    smaps: &str,
    numa_maps: &str,
    huge_page_bytes: u64,
    respected: RespectedPolicies,
) -> Vec<Mapping> {
    let mut policies = numa_maps.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let start = u64::from_str_radix(fields.next()?, 16).ok()?;
        Some((start, respected.includes(fields.next()?)))
    });
    let mut policy = policies.next();
    let mut mappings = Vec::new();
    let mut pages: Option<(Mapping, Sizes)> = None;
    let mut lines = smaps.lines();
    loop {
        let line = lines.next();
        if let Some(line) = line
            && let Some((name, value)) = line.split_once(':')
            && let Some((_, sizes)) = &mut pages
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        {
            sizes.take(name, value);
            continue;
        }
        // Another mapping begins, or the text has ended.
        if let Some((mut mapping, sizes)) = pages.take() {
            mapping.huge_bytes = sizes.huge_bytes(huge_page_bytes);
            if mapping.has_own_policy || mapping.huge_bytes.is_some() {
                mappings.push(mapping);
            }
        }
        let Some(line) = line else {
            return mappings;
        };
        let Some((start, end)) = range(line) else {
            continue;
        };
        while policy.is_some_and(|(at, _)| at < start) {
            policy = policies.next();
        }
        let mapping = Mapping {
            start,
            end,
            has_own_policy: policy == Some((start, true)),
            huge_bytes: None,
        };
        pages = Some((mapping, Sizes::default()));
    }
}

/// Parses the range in a line such as `7f0000000000-7f0000021000 rw-p …`.
fn range(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?)).filter(|(start, end)| start < end)
}

impl RespectedPolicies {
    /// Does this include a policy of `numa_maps` (mempolicy(7)), such as `bind:0-1`, `bind=static:0`, `interleave:0-3`,
    /// `prefer:1`, or a newer kernel's? `default` and `local` place pages by first touch.
    fn includes(self, policy: &str) -> bool {
        match self {
            Self::All => !matches!(policy, "default" | "local"),
            Self::Strict => policy.split([':', '=']).next() == Some("bind"),
        }
    }
}

/// Sizes in `smaps` of one mapping, in KiB.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    resident: u64,
    huge: u64,
    kernel_page: u64,
}

impl Sizes {
    fn take(&mut self, name: &str, value: &str) {
        let number = || value.split_ascii_whitespace().next()?.parse().ok();
        match name {
            "Rss" => self.resident = number().unwrap_or(0),
            "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => {
                self.huge = self.huge.saturating_add(number().unwrap_or(0));
            }
            "KernelPageSize" => self.kernel_page = number().unwrap_or(0),
            _ => (),
        }
    }

    /// Size of the mapping's huge pages. `smaps` tells how much memory is in huge pages, but not which pages are. A
    /// mapping that is mostly huge counts as huge throughout.
    fn huge_bytes(self, huge_page_bytes: u64) -> Option<u64> {
        let kernel_page_bytes = self.kernel_page.saturating_mul(1024);
        if kernel_page_bytes >= huge_page_bytes {
            // A hugetlb mapping, unless the size is invalid.
            return kernel_page_bytes
                .is_power_of_two()
                .then_some(kernel_page_bytes);
        }
        (self.huge > 0 && self.huge >= self.resident / 2).then_some(huge_page_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HUGE: u64 = 2 << 20;

    const SMAPS: &str = "\
00400000-00500000 r-xp 00000000 08:01 17 /usr/bin/a: b
Size:               1024 kB
KernelPageSize:        4 kB
Rss:                 512 kB
VmFlags: rd ex mr
7f0000100000-7f0000900000 rw-p 00000000 00:00 0
KernelPageSize:        4 kB
Rss:                8000 kB
AnonHugePages:      6144 kB
7f0001000000-7f0001200000 rw-p 00000000 00:00 0
KernelPageSize:        4 kB
Rss:                2048 kB
AnonHugePages:         0 kB
7f0002000000-7f0006000000 rw-s 00000000 00:0f 3 /dev/hugepages/x
KernelPageSize:     2048 kB
Rss:                   0 kB
7ffff0000000-7ffff0021000 rw-p 00000000 00:00 0 [stack]
KernelPageSize:        4 kB
Rss:                  20 kB
";
    const NUMA_MAPS: &str = "\
00400000 default file=/usr/bin/a:\\040b mapped=128 N0=128 kernelpagesize_kB=4
7f0000100000 default anon=2000 dirty=2000 N0=2000 kernelpagesize_kB=4
7f0001000000 bind:0-1 anon=512 dirty=512 N0=512 kernelpagesize_kB=4
7f0002000000 interleave:0-3 file=/dev/hugepages/x huge
7ffff0000000 local stack anon=5 dirty=5 N3=5 kernelpagesize_kB=4
";

    fn space() -> AddressSpace {
        AddressSpace {
            allowed: "0,2-3".parse().ok(),
            mappings: mappings(SMAPS, NUMA_MAPS, HUGE, RespectedPolicies::All),
        }
    }

    #[test]
    fn a_page_is_as_large_as_its_mapping_has_them() {
        let space = space();
        for (address, page) in [
            (0x40_1234, (0x40_1000, 4096)),
            // Addresses before the first whole huge page of the mapping, in one, and after the last.
            (0x7f00_0010_1008, (0x7f00_0010_1000, 4096)),
            (0x7f00_0030_1008, (0x7f00_0020_0000, HUGE)),
            (0x7f00_0085_0000, (0x7f00_0085_0000, 4096)),
            (0x7f00_0110_0010, (0x7f00_0110_0000, 4096)),
            (0x7f00_0300_0010, (0x7f00_0300_0000, HUGE)),
            (0x7f00_0090_0000, (0x7f00_0090_0000, 4096)),
        ] {
            assert_eq!(space.page(address, 4096), page, "{address:#x}");
        }
    }

    #[test]
    fn sizes_that_no_page_has_are_none() {
        for kib in [
            "4555555555555550",
            "18014398509481983",
            "9007199254740992",
            "3072",
        ] {
            let smaps =
                format!("1000-ffffffffffff0000 rw-p 00000000 00:00 0\nKernelPageSize: {kib} kB\n");
            let space = AddressSpace {
                allowed: None,
                mappings: mappings(&smaps, "", HUGE, RespectedPolicies::All),
            };
            for address in [0x1000, 0x7f00_0000_1008, 0xffff_ffff_fffe_ffff] {
                assert_eq!(space.page(address, 4096), (address & !4095, 4096), "{kib}");
            }
        }
    }

    #[test]
    fn policies_and_nodes_that_are_not_allowed_are_known() {
        let space = space();
        let own: Vec<bool> = [
            0x40_1234,
            0x7f00_0030_0000,
            0x7f00_0100_0000,
            0x7f00_0300_0000,
            0x7fff_f000_1000,
        ]
        .map(|address| space.has_own_policy(address))
        .into();
        assert_eq!(own, [false, false, true, true, false]);
        let allowed = [0, 1, 2, 3].map(|node| space.allows(NodeId(node)));
        assert_eq!(allowed, [true, false, true, true]);
        assert!(AddressSpace::default().allows(NodeId(7)));
    }

    #[test]
    fn preferred_node_policies_may_come_from_a_plan() {
        let of = |respected: RespectedPolicies| {
            let policies = [
                "bind:0",
                "bind=static:0-1",
                "prefer:1",
                "prefer (many):0",
                "interleave:0-3",
                "default",
            ];
            policies.map(|policy| respected.includes(policy))
        };
        assert_eq!(
            of(RespectedPolicies::All),
            [true, true, true, true, true, false]
        );
        assert_eq!(
            of(RespectedPolicies::Strict),
            [true, true, false, false, false, false]
        );
    }

    #[test]
    fn of_a_process_as_the_kernel_shows_it() {
        let space = AddressSpace::read(
            Path::new("/proc"),
            std::process::id(),
            HUGE,
            RespectedPolicies::All,
        );
        if let Some(allowed) = &space.allowed {
            assert!((0..1024).any(|node| allowed.contains(NodeId(node))));
        }
        let nobody = AddressSpace::read(Path::new("/proc"), u32::MAX, HUGE, RespectedPolicies::All);
        assert_eq!(nobody, AddressSpace::default());
    }

    proptest! {
        #[test]
        fn any_text_is_read(smaps in "[0-9a-f: \n-]{0,200}|(Rss: 9 kB\n|1-9 r\n|x\n){0,9}", numa_maps in "[0-9a-f: \n]{0,99}") {
            for mapping in mappings(&smaps, &numa_maps, HUGE, RespectedPolicies::All) {
                prop_assert!(mapping.start < mapping.end);
            }
        }

        #[test]
        fn a_page_has_its_address(address in 0u64..1 << 47) {
            let (start, bytes) = space().page(address, 4096);
            prop_assert!(start <= address && address < start + bytes && start % bytes == 0);
        }
    }
}
