//! Writes compact plans by hand, for tests and benchmarks.
#![allow(dead_code)]

use std::mem::{size_of, size_of_val};

use nearpage_wire::compact_plan::{
    FrameRange, Header, MAGIC, Module, NONE, Phase, Pin, Rule, Run, Section, Table, Weight,
};

/// The tables of a plan, and what its header says besides.
pub struct Tables {
    pub sections: Vec<Section>,
    pub modules: Vec<Module>,
    pub rules: Vec<Rule>,
    pub frames: Vec<FrameRange>,
    pub runs: Vec<Run>,
    pub nodes: Vec<u16>,
    pub weights: Vec<Weight>,
    pub pins: Vec<Pin>,
    pub phases: Vec<Phase>,
    pub names: Vec<u8>,
    pub mappings_max: u32,
    pub mechanism: u32,
    pub touch_pages_max: u64,
    pub touch_group: u32,
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            sections: Vec::new(),
            modules: Vec::new(),
            rules: Vec::new(),
            frames: Vec::new(),
            runs: Vec::new(),
            nodes: Vec::new(),
            weights: Vec::new(),
            pins: Vec::new(),
            phases: Vec::new(),
            names: Vec::new(),
            mappings_max: 16382,
            mechanism: 0,
            touch_pages_max: 1 << 20,
            touch_group: 1,
        }
    }
}

/// A rule that recognises and places nothing; fill in the rest.
pub const RULE: Rule = Rule {
    subject: 0,
    placement: 0,
    flags: 0,
    number: 0,
    module: NONE,
    thread: NONE,
    order: [0, NONE],
    turn: [0, 1],
    offset: 0,
    size_bytes: 0,
    size_bounds_bytes: [0, u64::MAX],
    frames: [0, 0],
    block_bytes: 0,
    nodes: [0, 0],
    runs: [0, 0],
    weights: [0, 0],
    columns: 0,
    objects: 0,
};

impl Tables {
    /// The file, in words for its alignment.
    pub fn encode(&self) -> Vec<u64> {
        fn append<T>(bytes: &mut Vec<u8>, entries: &[T]) -> Table {
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            let table = Table {
                offset: bytes.len() as u32,
                count: entries.len() as u32,
            };
            // SAFETY: structs of integers without padding.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(entries.as_ptr().cast(), size_of_val(entries))
            });
            table
        }
        let mut bytes = vec![0; size_of::<Header>()];
        let header = Header {
            magic: MAGIC,
            page_bytes: 4096,
            huge_page_bytes: 2 << 20,
            mappings_max: self.mappings_max,
            mechanism: self.mechanism,
            touch_pages_max: self.touch_pages_max,
            touch_group: self.touch_group,
            flags: 1,
            sections: append(&mut bytes, &self.sections),
            modules: append(&mut bytes, &self.modules),
            rules: append(&mut bytes, &self.rules),
            frames: append(&mut bytes, &self.frames),
            runs: append(&mut bytes, &self.runs),
            nodes: append(&mut bytes, &self.nodes),
            weights: append(&mut bytes, &self.weights),
            pins: append(&mut bytes, &self.pins),
            names: append(&mut bytes, &self.names),
            phases: append(&mut bytes, &self.phases),
        };
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        // SAFETY: as above.
        let head = unsafe {
            std::slice::from_raw_parts((&raw const header).cast::<u8>(), size_of::<Header>())
        };
        bytes[..head.len()].copy_from_slice(head);
        bytes
            .chunks(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect()
    }
}

/// The bytes of those words.
pub fn bytes(words: &[u64]) -> &[u8] {
    // SAFETY: any words are bytes.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// A module with this build-id and name.
pub fn module(names: &mut Vec<u8>, build_id: &[u8], name: &[u8]) -> Module {
    let mut padded = [0; 32];
    padded[..build_id.len()].copy_from_slice(build_id);
    let place = [names.len() as u32, name.len() as u32];
    names.extend_from_slice(name);
    Module {
        build_id: padded,
        build_id_bytes: build_id.len() as u32,
        name: place,
        reserved: 0,
    }
}
