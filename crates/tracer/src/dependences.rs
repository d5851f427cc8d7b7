//! Which loads wait for data that others fetch.
//!
//! A processor that executes out of order has several misses under way, as far as addresses of the later ones
//! do not come from data of the earlier: of a list's elements one after the other, of an array's as many as
//! it has room for. Where a block's addresses come from is found once, from its instructions, when the emulator
//! translates it ([`Flow`]); while it runs, of each register is known which miss its value comes from
//! ([`Origins`]).
//!
//! # What is simplified
//! Values that go through memory are not followed (a spilled pointer comes from nowhere when it is loaded
//! again, from a hit), nor those in vector registers, flags and branches: a processor predicts these. Of a block's
//! loads the first 64 are followed.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess, Register};

use crate::thread::Run;

/// General-purpose registers.
const REGISTERS: usize = 16;
/// Loads of a block that are followed.
const LOADS: usize = 64;

/// What a value is computed from: registers as they were when the block began, loads of the block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sources {
    registers: u16,
    loads: u64,
}

impl Sources {
    fn and(self, other: Self) -> Self {
        Self {
            registers: self.registers | other.registers,
            loads: self.loads | other.loads,
        }
    }
}

/// An instruction that reads memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    /// Its number in the block.
    number: u64,
    address: Sources,
}

/// Where addresses and results of a block come from.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Flow {
    loads: Vec<Load>,
    /// Registers that the block leaves with another value.
    written: Vec<(usize, Sources)>,
}

/// A block's flow, while its instructions are looked at one after the other.
pub struct FlowBuilder {
    factory: InstructionInfoFactory,
    registers: [Sources; REGISTERS],
    loads: Vec<Load>,
}

fn general(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number() % REGISTERS)
}

fn reads(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

impl Default for FlowBuilder {
    fn default() -> Self {
        let mut registers = [Sources::default(); REGISTERS];
        for (number, register) in registers.iter_mut().enumerate() {
            register.registers = 1 << number;
        }
        Self {
            factory: InstructionInfoFactory::new(),
            registers,
            loads: Vec::new(),
        }
    }
}

impl FlowBuilder {
    /// The next instruction: its number in the block, its address, its bytes.
    pub fn add(&mut self, number: usize, address: u64, text: &[u8]) {
        let mut instruction = Instruction::default();
        let mut decoder = Decoder::with_ip(64, text, address, DecoderOptions::NONE);
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return;
        }
        let info = self.factory.info(&instruction);
        let of = |register: Register| {
            general(register).map_or(Sources::default(), |number| self.registers[number])
        };
        let mut inputs = Sources::default();
        for used in info.used_registers() {
            if reads(used.access()) {
                inputs = inputs.and(of(used.register()));
            }
        }
        let mut from = Sources::default();
        let mut loads = false;
        for memory in info.used_memory() {
            if reads(memory.access()) {
                loads = true;
                from = from.and(of(memory.base())).and(of(memory.index()));
            }
        }
        if loads && self.loads.len() < LOADS {
            inputs.loads |= 1 << self.loads.len();
            let load = Load {
                number: number as u64,
                address: from,
            };
            self.loads.push(load);
        }
        for used in info.used_registers() {
            let Some(number) = general(used.register()) else {
                continue;
            };
            // The stack's pointer is moved by constants.
            if !writes(used.access()) || used.register().full_register() == Register::RSP {
                continue;
            }
            // A part of a register, or a value that may stay, keeps what was there.
            let whole = used.register().size() >= 4 && used.access() == OpAccess::Write
                || used.access() == OpAccess::ReadWrite;
            self.registers[number] = match whole {
                true => inputs,
                false => inputs.and(self.registers[number]),
            };
        }
    }

    /// The block's flow.
    pub fn finish(self) -> Flow {
        let registers = self.registers.into_iter().enumerate();
        let changed = registers.filter(|&(number, sources)| {
            sources
                != Sources {
                    registers: 1 << number,
                    loads: 0,
                }
        });
        Flow {
            loads: self.loads,
            written: changed.collect(),
        }
    }
}

/// Flows of all blocks that were translated.
#[derive(Default)]
pub struct Flows {
    by_block: RwLock<HashMap<u64, &'static Flow>>,
}

impl Flows {
    /// A block was translated, for the first time or anew.
    pub fn add(&self, run: Run, flow: Flow) {
        let mut known = self
            .by_block
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if known.get(&run.0).is_none_or(|before| **before != flow) {
            // As long as the emulator's translation may be run by somebody, it is read.
            known.insert(run.0, Box::leak(Box::new(flow)));
        }
    }

    fn get(&self, run: Run) -> Option<&'static Flow> {
        let known = self.by_block.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&run.0).copied()
    }
}

/// Lines of misses that are remembered, more than any processor has under way.
const FETCHED: usize = 64;
/// Blocks that a thread finds without a lock.
const RECENT: usize = 1024;

/// Which miss the values of a thread's registers come from: its position in the thread's instructions, from 1; 0:
/// none.
pub struct Origins {
    registers: [u64; REGISTERS],
    /// Origins of the block's loads so far.
    loads: [u64; LOADS],
    block: Option<&'static Flow>,
    /// Load of the block that comes next.
    next: usize,
    /// Lines that misses fetched last, and these misses: what hits there waits for the line, too.
    fetched: [(u64, u64); FETCHED],
    /// Blocks by their hash, and their flows.
    recent: [(u64, Option<&'static Flow>); RECENT],
}

impl Default for Origins {
    fn default() -> Self {
        Self {
            registers: [0; REGISTERS],
            loads: [0; LOADS],
            block: None,
            next: 0,
            fetched: [(u64::MAX, 0); FETCHED],
            recent: [(0, None); RECENT],
        }
    }
}

impl Origins {
    /// A miss has the line fetched.
    pub fn fetch(&mut self, line: u64, miss: u64) {
        self.fetched[line as usize % FETCHED] = (line, miss);
    }

    /// The miss that fetched the line, where that was lately.
    fn of_line(&self, line: u64) -> u64 {
        match self.fetched[line as usize % FETCHED] {
            (fetched, miss) if fetched == line => miss,
            _ => 0,
        }
    }

    /// A block begins.
    pub fn begin(&mut self, flows: &Flows, run: Run) {
        let place = (run.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % RECENT;
        if self.recent[place].0 != run.0 {
            self.recent[place] = (run.0, flows.get(run));
        }
        self.enter(self.recent[place].1);
    }

    fn latest(&self, sources: Sources) -> u64 {
        let mut latest = 0;
        let mut registers = sources.registers;
        while registers != 0 {
            latest = latest.max(self.registers[registers.trailing_zeros() as usize % REGISTERS]);
            registers &= registers - 1;
        }
        let mut loads = sources.loads;
        while loads != 0 {
            latest = latest.max(self.loads[loads.trailing_zeros() as usize % LOADS]);
            loads &= loads - 1;
        }
        latest
    }

    /// The block has ended, and another begins; `None`: nothing is known of it.
    fn enter(&mut self, next: Option<&'static Flow>) {
        if let Some(block) = self.block {
            let mut values = [0; REGISTERS];
            for (value, (_, sources)) in values.iter_mut().zip(&block.written) {
                *value = self.latest(*sources);
            }
            for (value, (register, _)) in values.iter().zip(&block.written) {
                self.registers[register % REGISTERS] = *value;
            }
            let loads = block.loads.len().min(LOADS);
            self.loads[..loads].fill(0);
        }
        self.block = next;
        self.next = 0;
    }

    /// The miss that the address of the block's instruction with that number comes from, where it loads.
    pub fn of_address(&mut self, number: u64) -> u64 {
        let Some(block) = self.block else {
            return 0;
        };
        let rest = block.loads.get(self.next..).unwrap_or_default();
        let before = rest.iter().take_while(|load| load.number < number).count();
        self.next += before;
        match block.loads.get(self.next) {
            Some(load) if load.number == number => self.latest(load.address),
            _ => 0,
        }
    }

    /// That instruction has loaded from the line; its address comes from that miss.
    pub fn load(&mut self, number: u64, line: u64, of_address: u64) {
        let origin = self.of_line(line).max(of_address);
        let load = self.block.and_then(|block| block.loads.get(self.next));
        if load.is_some_and(|load| load.number == number)
            && let Some(loaded) = self.loads.get_mut(self.next)
        {
            *loaded = origin.max(*loaded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(instructions: &[&[u8]]) -> &'static Flow {
        let mut builder = FlowBuilder::default();
        for (number, text) in instructions.iter().enumerate() {
            builder.add(number, 0x1000 + 8 * number as u64, text);
        }
        Box::leak(Box::new(builder.finish()))
    }

    /// Runs a loop's block so often, with every load a miss: which misses the addresses of its loads come from.
    fn run(block: &'static Flow, length: u64, rounds: u64) -> Vec<u64> {
        let mut origins = Origins::default();
        let mut found = Vec::new();
        for round in 0..rounds {
            origins.enter(Some(block));
            for load in &block.loads {
                let origin = origins.of_address(load.number);
                found.push(origin);
                let position = 1 + round * length + load.number;
                origins.fetch(position, position);
                origins.load(load.number, position, origin);
            }
        }
        found
    }

    #[test]
    fn an_element_of_a_list_waits_for_the_one_before() {
        // mov rax, [rax]; add rdx, 1; jne
        let chase = flow(&[b"\x48\x8b\x00", b"\x48\x83\xc2\x01", b"\x75\xf0"]);
        assert_eq!(run(chase, 3, 4), [0, 1, 4, 7]);
    }

    #[test]
    fn an_element_of_an_array_waits_for_nothing() {
        // mov rdx, [rcx + 8 * rax]; add rsi, rdx; add rax, 1; jne
        let stream = flow(&[
            b"\x48\x8b\x14\xc1",
            b"\x48\x01\xd6",
            b"\x48\x83\xc0\x01",
            b"\x75\xf0",
        ]);
        assert_eq!(run(stream, 4, 4), [0; 4]);
    }

    #[test]
    fn an_index_that_is_loaded_is_waited_for_within_a_block_and_across() {
        // movsxd rdx, dword [rcx + 4 * rax]; add rax, 1; mulsd xmm0, [rdi + 8 * rdx]
        let gather = flow(&[
            b"\x48\x63\x14\x81",
            b"\x48\x83\xc0\x01",
            b"\xf2\x0f\x59\x04\xd7",
        ]);
        assert_eq!(run(gather, 3, 3), [0, 1, 0, 4, 0, 7]);
        // mov rdx, [rcx] in one block, lea rsi, [rdx + 8]; mov rsi, [rsi] in the next.
        let (first, second) = (
            flow(&[b"\x48\x8b\x11"]),
            flow(&[b"\x48\x8d\x72\x08", b"\x48\x8b\x36"]),
        );
        let mut origins = Origins::default();
        origins.enter(Some(first));
        assert_eq!(origins.of_address(0), 0);
        origins.fetch(77, 5);
        origins.load(0, 77, 0);
        origins.enter(Some(second));
        assert_eq!(origins.of_address(1), 5);
    }

    #[test]
    fn what_is_overwritten_comes_from_nowhere() {
        // mov rdx, [rcx]; xor edx, edx; mov rsi, [rdx]
        let cleared = flow(&[b"\x48\x8b\x11", b"\x31\xd2", b"\x48\x8b\x32"]);
        assert_eq!(run(cleared, 3, 1), [0, 0]);
        // mov dl, [rcx] keeps the upper bits: mov rdx, [rsi]; mov dl, [rcx]; mov rax, [rdx]
        let part = flow(&[b"\x48\x8b\x16", b"\x8a\x11", b"\x48\x8b\x02"]);
        assert_eq!(run(part, 3, 1), [0, 0, 2]);
    }

    #[test]
    fn a_hit_hands_on_what_its_address_comes_from() {
        let chase = flow(&[b"\x48\x8b\x00"]);
        let mut origins = Origins::default();
        // What another instruction's miss fetches is waited for, too.
        origins.fetch(3, 9);
        for (line, expected) in [(3, 0), (4, 9), (5, 9)] {
            origins.enter(Some(chase));
            let origin = origins.of_address(0);
            assert_eq!(origin, expected);
            origins.load(0, line, origin);
        }
    }

    #[test]
    fn bytes_that_are_no_instruction_and_blocks_of_many_loads_are_survived() {
        let loads = vec![&b"\x48\x8b\x00"[..]; 200];
        assert_eq!(flow(&loads).loads.len(), LOADS);
        assert_eq!(flow(&[b"", b"\x06", b"\xff\xff"]).loads, []);
        let mut origins = Origins::default();
        origins.enter(Some(flow(&loads)));
        assert_eq!(origins.of_address(150), 0);
        origins.load(150, 0, 3);
    }
}
