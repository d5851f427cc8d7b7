//! Verdicts on x86 code.

use nearpage_recording::AccessKind;
use proptest::prelude::*;

use super::Decoder;
use crate::calibrate::SkidSide;
use crate::instruction::{Code, Decode};
use crate::verdict::{REGISTERS, Registers, THREAD_POINTER, Undecoded, Verdict};

type Judge = crate::judge::Judge<Decoder>;

const BASE: u64 = 0x40_1000;
// Positions of registers in a sample.
const AX: usize = 0;
const CX: usize = 2;
const DX: usize = 3;
const SI: usize = 4;
const DI: usize = 5;
const SP: usize = 7;
const R8: usize = 8;
const R9: usize = 9;

/// Code as instructions. Samples are at the beginning of an instruction.
struct Program {
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

fn program(instructions: &[&[u8]]) -> Program {
    let mut program = Program {
        bytes: Vec::new(),
        starts: Vec::new(),
    };
    for bytes in instructions {
        program.starts.push(program.bytes.len());
        program.bytes.extend(*bytes);
    }
    program
}

impl Program {
    fn judge(&self, instruction: usize, side: SkidSide) -> Verdict {
        let code = Code {
            address: BASE,
            bytes: &self.bytes,
            bitness: 64,
        };
        Judge::default().judge(
            code,
            &Decoder::sweep(code, 0),
            self.starts[instruction],
            side,
        )
    }

    /// Index of the instruction, kind and address of each access.
    fn accesses(
        &self,
        at: usize,
        side: SkidSide,
        registers: &Registers,
    ) -> Vec<(usize, AccessKind, u64)> {
        let Verdict::Accesses { templates, .. } = self.judge(at, side) else {
            return Vec::new();
        };
        let index = |address: u64| {
            self.starts
                .iter()
                .position(|start| BASE + *start as u64 == address)
                .unwrap()
        };
        templates
            .iter()
            .map(|t| (index(t.instruction), t.kind, t.address(registers)))
            .collect()
    }
}

fn registers(values: &[(usize, u64)]) -> Registers {
    let mut registers = [0; REGISTERS];
    for (register, value) in values {
        registers[*register] = *value;
    }
    registers
}

#[test]
fn the_instruction_just_before_or_none() {
    // add rax,[r9+rcx*8]; cmp rdx,rdi; xor ecx,eax; ret
    let program = program(&[
        &[0x49, 0x03, 0x04, 0xc9],
        &[0x48, 0x39, 0xfa],
        &[0x31, 0xc1],
        &[0xc3],
    ]);
    let registers = registers(&[(R9, 0x1000), (CX, 3)]);
    assert_eq!(
        program.accesses(1, SkidSide::Before, &registers),
        [(0, AccessKind::Load, 0x1018)]
    );
    assert_eq!(
        program.accesses(0, SkidSide::At, &registers),
        [(0, AccessKind::Load, 0x1018)]
    );
    assert_eq!(program.judge(2, SkidSide::Before), Verdict::Compute);
    assert_eq!(program.judge(0, SkidSide::Before), Verdict::Compute);
    assert_eq!(program.judge(1, SkidSide::At), Verdict::Compute);
}

#[test]
fn instructions_without_memory_are_no_access() {
    // prefetcht0 [rax]; lea rcx,[rax]; nop [rax+rax]; ret
    let code: [&[u8]; 4] = [
        &[0x0f, 0x18, 0x08],
        &[0x48, 0x8d, 0x08],
        &[0x0f, 0x1f, 0x04, 0x00],
        &[0xc3],
    ];
    let program = program(&code);
    for at in 1..4 {
        assert_eq!(program.judge(at, SkidSide::Before), Verdict::Compute);
    }
}

#[test]
fn overwritten_addresses_are_computed_again() {
    // mov rcx,r9; and rcx,rax; mov rcx,[r8+rcx*8]; ret
    let program = program(&[
        &[0x4c, 0x89, 0xc9],
        &[0x48, 0x21, 0xc1],
        &[0x49, 0x8b, 0x0c, 0xc8],
        &[0xc3],
    ]);
    let registers = registers(&[(R9, 0xff), (AX, 0x1234), (R8, 0x1000), (CX, 777)]);
    assert_eq!(
        program.accesses(3, SkidSide::Before, &registers),
        [(2, AccessKind::Load, 0x1000 + 0x34 * 8)]
    );
}

#[test]
fn a_copy_of_an_overwritten_address_serves() {
    // mov rdi,rax; test rax,rax; movsx rax,byte [rax]; ret
    let program = program(&[
        &[0x48, 0x89, 0xc7],
        &[0x48, 0x85, 0xc0],
        &[0x48, 0x0f, 0xbe, 0x00],
        &[0xc3],
    ]);
    let registers = registers(&[(DI, 0x5000), (AX, 1)]);
    assert_eq!(
        program.accesses(3, SkidSide::Before, &registers),
        [(2, AccessKind::Load, 0x5000)]
    );
}

#[test]
fn a_pointer_chase_leads_to_the_next_element() {
    // loop: mov rcx,[rdi+rcx*8]; cmp rdx,rax; jne loop; ret
    let program = program(&[
        &[0x48, 0x8b, 0x0c, 0xcf],
        &[0x48, 0x39, 0xc2],
        &[0x75, 0xf7],
        &[0xc3],
    ]);
    let registers = registers(&[(DI, 0x1000), (CX, 5)]);
    assert_eq!(
        program.accesses(1, SkidSide::Before, &registers),
        [(0, AccessKind::Load, 0x1028)]
    );
    // At the head of the loop, the previous instruction is the jump, not the one above in memory.
    assert_eq!(program.judge(0, SkidSide::Before), Verdict::Compute);
}

#[test]
fn nothing_is_made_up_for_what_is_lost() {
    // mov rax,[rax]; ret
    let program = program(&[&[0x48, 0x8b, 0x00], &[0xc3]]);
    // The return at the sampled address has its own access.
    let registers = registers(&[(SP, 0x7000)]);
    assert_eq!(
        program.accesses(1, SkidSide::Before, &registers),
        [(1, AccessKind::Load, 0x7000)]
    );
    // mov rax,[rax]; mov eax,1
    let program = self::program(&[&[0x48, 0x8b, 0x00], &[0xb8, 1, 0, 0, 0]]);
    assert_eq!(
        program.judge(1, SkidSide::Before),
        Verdict::Undecoded(Undecoded::Overwritten)
    );
}

#[test]
fn a_comparison_is_one_with_its_jump() {
    // cmp [rdi+rax*8],rcx; jae +4; add rax,1; add r8,1
    let code: [&[u8]; 4] = [
        &[0x48, 0x39, 0x0c, 0xc7],
        &[0x73, 0x04],
        &[0x48, 0x83, 0xc0, 0x01],
        &[0x49, 0x83, 0xc0, 0x01],
    ];
    let program = program(&code);
    let registers = registers(&[(DI, 0x1000), (AX, 2)]);
    for at in [1, 2, 3] {
        assert_eq!(
            program.accesses(at, SkidSide::Before, &registers),
            [(0, AccessKind::Load, 0x1010)]
        );
    }
}

#[test]
fn stack_and_string_pointers_move_by_known_amounts() {
    // push rbx; pop rbx; movsq; rep stosb; ret
    let code: [&[u8]; 5] = [&[0x53], &[0x5b], &[0x48, 0xa5], &[0xf3, 0xaa], &[0xc3]];
    let program = program(&code);
    let registers = registers(&[(SP, 0x7000), (SI, 0x1008), (DI, 0x2008), (CX, 4), (DX, 0)]);
    assert_eq!(
        program.accesses(1, SkidSide::Before, &registers),
        [(0, AccessKind::Store, 0x7000)]
    );
    assert_eq!(
        program.accesses(2, SkidSide::Before, &registers),
        [(1, AccessKind::Load, 0x6ff8)]
    );
    // For a repeated instruction, samples stand at the instruction itself.
    assert_eq!(
        program.accesses(3, SkidSide::Before, &registers),
        [(3, AccessKind::Store, 0x2008)]
    );
    assert_eq!(
        program.accesses(4, SkidSide::Before, &registers),
        [(3, AccessKind::Store, 0x2007)]
    );
    // movsq; nop
    let program = self::program(&[&[0x48, 0xa5], &[0x90]]);
    let both = program.accesses(1, SkidSide::Before, &registers);
    assert!(
        both.contains(&(0, AccessKind::Load, 0x1000))
            && both.contains(&(0, AccessKind::Store, 0x2000))
    );
}

#[test]
fn locked_instructions_store() {
    // lock cmpxchg [rdi],rcx; lock xadd [rsi],rdx; ret
    let program = program(&[
        &[0xf0, 0x48, 0x0f, 0xb1, 0x0f],
        &[0xf0, 0x48, 0x0f, 0xc1, 0x16],
        &[0xc3],
    ]);
    let registers = registers(&[(SI, 0x1000), (DI, 0x2000)]);
    assert_eq!(
        program.accesses(1, SkidSide::Before, &registers),
        [(0, AccessKind::Store, 0x2000)]
    );
    assert_eq!(
        program.accesses(2, SkidSide::Before, &registers),
        [(1, AccessKind::Store, 0x1000)]
    );
}

#[test]
fn thread_bases_and_vector_indices_are_told_apart() {
    // mov rax,gs:[0]; vpgatherdd ymm0,[rax+ymm1*4],ymm2; ret
    let code: [&[u8]; 3] = [
        &[0x65, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0],
        &[0xc4, 0xe2, 0x6d, 0x90, 0x04, 0x88],
        &[0x90],
    ];
    let program = program(&code);
    assert_eq!(
        program.judge(1, SkidSide::Before),
        Verdict::Undecoded(Undecoded::ThreadBase)
    );
    assert_eq!(
        program.judge(2, SkidSide::Before),
        Verdict::Undecoded(Undecoded::VectorIndex)
    );
}

#[test]
fn thread_local_variables_are_relative_to_the_thread_pointer() {
    // mov rax,fs:[-8]; mov rax,fs:[rdi+8]; mov rax,fs:[rdi+rcx*4+8]; mov eax,fs:[edi]; nop
    let program = program(&[
        &[0x64, 0x48, 0x8b, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff],
        &[0x64, 0x48, 0x8b, 0x47, 0x08],
        &[0x64, 0x48, 0x8b, 0x44, 0x8f, 0x08],
        &[0x67, 0x64, 0x8b, 0x07],
        &[0x90],
    ]);
    let registers = registers(&[(usize::from(THREAD_POINTER), 0x7000), (DI, 0x20), (CX, 2)]);
    for (at, address) in [(1, 0x6ff8), (2, 0x7028), (3, 0x7030)] {
        let expected = [(at - 1, AccessKind::Load, address)];
        assert_eq!(program.accesses(at, SkidSide::Before, &registers), expected);
    }
    let verdict = program.judge(4, SkidSide::Before);
    assert_eq!(verdict, Verdict::Undecoded(Undecoded::ThreadBase));
}

#[test]
fn a_block_shares_the_sample() {
    // mov rax,[rdi]; add rdi,8; mov [rdi],rax; mov rcx,[rax]; jmp; mov [rsi],rax
    let code: [&[u8]; 6] = [
        &[0x48, 0x8b, 0x07],
        &[0x48, 0x83, 0xc7, 0x08],
        &[0x48, 0x89, 0x07],
        &[0x48, 0x8b, 0x08],
        &[0xeb, 0x00],
        &[0x48, 0x89, 0x06],
    ];
    let program = program(&code);
    let registers = registers(&[(DI, 0x1000)]);
    // Addresses that depend on a loaded value are left out; addresses that depend on registers are kept.
    let expected = [
        (0, AccessKind::Load, 0x1000),
        (2, AccessKind::Store, 0x1008),
    ];
    assert_eq!(program.accesses(0, SkidSide::Block, &registers), expected);
}

#[test]
fn code_after_data_is_found() {
    // V8 leaves offsets between two functions, some of which are no valid instructions.
    let data = [
        0x0a, 0x00, 0x50, 0x01, 0x06, 0x5a, 0x03, 0x12, 0xb4, 0x06, 0x8a,
    ];
    // vmovsd xmm0,[rbp-0xd8]; vmovsd [r8+7],xmm0; add r8,1; cmp r9,r8
    let code: [&[u8]; 4] = [
        &[0xc5, 0xfb, 0x10, 0x85, 0x28, 0xff, 0xff, 0xff],
        &[0xc4, 0xc1, 0x7b, 0x11, 0x40, 0x07],
        &[0x49, 0x83, 0xc0, 0x01],
        &[0x4d, 0x39, 0xc1],
    ];
    let mut bytes: Vec<u8> = data.iter().copied().cycle().take(192).collect();
    code.iter()
        .for_each(|instruction| bytes.extend(*instruction));
    let at = 192 + code[..3].concat().len();
    let code = Code {
        address: BASE,
        bytes: &bytes,
        bitness: 64,
    };
    let first = Decoder::converge(code, at).expect("an instruction boundary");
    let flow = Decoder::sweep(code, first);
    let index = flow.index(at).expect("a boundary at the sample");
    assert_eq!(flow.start(index - 1), at - 4);
    assert_eq!(flow.start(index - 2), at - 10);
}

proptest! {
    #[test]
    fn any_bytes_get_a_verdict(bytes in prop::collection::vec(any::<u8>(), 1..300), at in 0usize..300, side in 0..3, bitness in 0..2) {
        let at = at % bytes.len();
        let side = [SkidSide::Before, SkidSide::At, SkidSide::Block][side as usize];
        let code = Code { address: u64::MAX - 100, bytes: &bytes, bitness: [32, 64][bitness as usize] };
        for first in [Some(0), Decoder::converge(code, at)].into_iter().flatten() {
            let flow = Decoder::sweep(code, first);
            if let Verdict::Accesses { templates, .. } = Judge::default().judge(code, &flow, at, side) {
                prop_assert!(!templates.is_empty());
                for template in &templates {
                    let _ = template.address(&[u64::MAX; REGISTERS]);
                }
            }
        }
    }

    /// Trial decoding finds the same boundaries as decoding from the beginning.
    #[test]
    fn convergence_agrees_with_the_sweep(count in 60usize..200) {
        let one: [&[u8]; 4] = [&[0x49, 0x03, 0x04, 0xc9], &[0x48, 0x39, 0xfa], &[0x0f, 0x1f, 0x44, 0, 0], &[0x53]];
        let bytes: Vec<u8> = (0..count).flat_map(|n| one[n * n % 4]).copied().collect();
        let code = Code { address: BASE, bytes: &bytes, bitness: 64 };
        let sweep = Decoder::sweep(code, 0);
        let at = sweep.start(count - 1);
        let converged = Decoder::sweep(code, Decoder::converge(code, at).unwrap());
        let before = converged.index(at).unwrap() - 1;
        prop_assert_eq!(converged.start(before), sweep.start(count - 2));
    }
}
