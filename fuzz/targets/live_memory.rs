#![no_main]
//! Files about a process that `nearpage live` reads: `status`, `smaps`, `numa_maps`, chosen by the tag of a piece.

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::{Scratch, pieces};
use nearpage_live::{AddressSpace, RespectedPolicies};
use nearpage_machine::NodeId;

thread_local!(static SCRATCH: Scratch = Scratch::default());

const HUGE_BYTES: u64 = 2 << 20;

fuzz_target!(|data: &[u8]| {
    let mut files = [const { Vec::new() }; 3];
    for (tag, text) in pieces(data) {
        files[usize::from(tag) % 3].extend_from_slice(text);
    }
    SCRATCH.with(|scratch| {
        for (name, text) in ["status", "smaps", "numa_maps"].iter().zip(&files) {
            scratch.write(&format!("7/{name}"), text);
        }
        let space = AddressSpace::read(scratch.folder(), 7, HUGE_BYTES, RespectedPolicies::All);
        space.allows(NodeId(1));
        for mapping in &space.mappings {
            for address in [mapping.start, mapping.end - 1, mapping.end] {
                space.has_own_policy(address);
                let (start, bytes) = space.page(address, 4096);
                assert!(start <= address && address - start < bytes);
            }
        }
    });
});
