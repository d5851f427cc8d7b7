use super::*;

fn configuration(attributes: &Attributes) -> [u64; 3] {
    [attributes.config, attributes.config1, attributes.config2]
}
use crate::pmu::devices::tests::sys;

type Files = &'static [(&'static str, &'static str)];

/// A Skylake server, which has uncore PMUs besides the cores'.
pub(crate) const SKYLAKE: Files = &[
    ("cpu/type", "4"),
    ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
    ("cpu/events/mem-stores", "event=0xd0,umask=0x82"),
    ("cpu/events/cpu-cycles", "event=0x3c"),
    ("cpu/format/event", "config:0-7"),
    ("cpu/format/umask", "config:8-15"),
    ("cpu/format/edge", "config:18"),
    ("cpu/format/ldlat", "config1:0-15"),
    ("cpu/caps/max_precise", "3"),
    ("cpu/caps/pmu_name", "skylake"),
    ("uncore_imc_0/type", "15"),
    ("uncore_imc_0/cpumask", "0,20"),
    ("uncore_imc_0/events/cas_count_read", "event=0x4,umask=0x3"),
    ("uncore_imc_0/format/event", "config:0-7"),
    ("uncore_imc_0/format/umask", "config:8-15"),
    ("software/type", "1"),
];

pub(crate) const SAPPHIRE_RAPIDS: Files = &[
    ("cpu/type", "4"),
    ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
    ("cpu/events/mem-loads-aux", "event=0x03,umask=0x82"),
    ("cpu/events/mem-stores", "event=0xcd,umask=0x2"),
    ("cpu/format/event", "config:0-7"),
    ("cpu/format/umask", "config:8-15"),
    ("cpu/format/ldlat", "config1:0-15"),
    ("cpu/caps/max_precise", "3"),
];

pub(crate) const ALDER_LAKE: Files = &[
    ("cpu_core/type", "4"),
    ("cpu_core/cpus", "0-15"),
    ("cpu_core/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
    ("cpu_core/events/mem-loads-aux", "event=0x03,umask=0x82"),
    ("cpu_core/events/mem-stores", "event=0xcd,umask=0x2"),
    ("cpu_core/format/event", "config:0-7"),
    ("cpu_core/format/umask", "config:8-15"),
    ("cpu_core/format/ldlat", "config1:0-15"),
    ("cpu_core/caps/max_precise", "3"),
    ("cpu_atom/type", "10"),
    ("cpu_atom/cpus", "16-23"),
    ("cpu_atom/events/mem-loads", "event=0xd0,umask=0x5,ldlat=3"),
    ("cpu_atom/events/mem-stores", "event=0xd0,umask=0x6"),
    ("cpu_atom/format/event", "config:0-7"),
    ("cpu_atom/format/umask", "config:8-15"),
    ("cpu_atom/format/ldlat", "config1:0-15"),
    ("cpu_atom/caps/max_precise", "3"),
];

pub(crate) const ZEN_3: Files = &[
    ("cpu/type", "4"),
    ("cpu/events/cpu-cycles", "event=0x76"),
    ("cpu/format/event", "config:0-7,32-35"),
    ("cpu/format/umask", "config:8-15"),
    ("ibs_fetch/type", "10"),
    ("ibs_fetch/format/rand_en", "config:57"),
    ("ibs_op/type", "11"),
    ("ibs_op/format/cnt_ctl", "config:19"),
];

pub(crate) const ZEN_4: Files = &[
    ("ibs_op/type", "11"),
    ("ibs_op/format/cnt_ctl", "config:19"),
    ("ibs_op/format/l3missonly", "config:16"),
    ("ibs_op/format/swfilt", "config2:0"),
    ("ibs_op/caps/zen4_ibs_extensions", "1"),
];

pub(crate) const NEOVERSE: Files = &[
    ("armv8_pmuv3_0/type", "8"),
    ("armv8_pmuv3_0/cpus", "0-79"),
    ("armv8_pmuv3_0/events/mem_access", "event=0x0013"),
    ("armv8_pmuv3_0/format/event", "config:0-15"),
    ("arm_spe_0/type", "9"),
    ("arm_spe_0/cpumask", "0-79"),
    ("arm_spe_0/format/ts_enable", "config:0"),
    ("arm_spe_0/format/pa_enable", "config:1"),
    ("arm_spe_0/format/jitter", "config:16"),
    ("arm_spe_0/format/branch_filter", "config:32"),
    ("arm_spe_0/format/load_filter", "config:33"),
    ("arm_spe_0/format/store_filter", "config:34"),
    ("arm_spe_0/format/event_filter", "config1:0-63"),
    ("arm_spe_0/format/min_latency", "config2:0-11"),
    ("arm_spe_0/caps/min_interval", "1024"),
];

pub(crate) fn events(
    files: Files,
    rate_or_period: RateOrPeriod,
) -> Result<Vec<MemoryEvent>, String> {
    memory_events(
        &Device::all(sys(files).path()),
        PmuEvent::Access,
        30,
        rate_or_period,
    )
}

/// Name, type, configuration, period or rate.
fn shape(event: &MemoryEvent) -> (&str, u32, [u64; 3], u64) {
    let attributes = &event.attributes;
    (
        &event.name,
        attributes.kind,
        configuration(attributes),
        attributes.sample_period,
    )
}

#[test]
fn intel_servers_sample_loads_and_stores() {
    let found = events(SKYLAKE, RateOrPeriod::Rate(251.0)).unwrap();
    let [loads, stores] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(
        shape(loads),
        ("cpu/mem-loads,ldlat=30/", 4, [0x1cd, 30, 0], 251)
    );
    assert_eq!(shape(stores), ("cpu/mem-stores/", 4, [0x82d0, 0, 0], 251));
    for event in [loads, stores] {
        let flags = event.attributes.flags;
        assert_eq!(flags >> flag::PRECISE_IP_SHIFT & 3, 2);
        assert!(flags & flag::FREQ != 0 && flags & flag::EXCLUDE_KERNEL != 0);
        assert!(event.leader.is_none() && event.on(CpuId(99)) && !event.packets);
        assert_eq!(event.attributes.sample_type, PRECISE_SAMPLE);
    }
    assert_eq!(loads.form, Form::Precise(AccessKind::Load));
    assert_eq!(stores.form, Form::Precise(AccessKind::Store));
}

#[test]
fn loads_are_led_by_their_auxiliary_event_where_there_is_one() {
    let found = events(SAPPHIRE_RAPIDS, RateOrPeriod::Period(2003)).unwrap();
    let leader = found[0].leader.unwrap();
    assert_eq!(configuration(&leader), [0x8203, 0, 0]);
    // The leader counts and does not sample.
    assert_eq!((leader.sample_period, leader.sample_type), (0, 0));
    assert_eq!(found[0].attributes.sample_period, 2003);
    assert_eq!(found[0].attributes.flags & flag::FREQ, 0);
    assert_eq!((found[0].files(), found[1].files()), (2, 1));
    assert!(found[1].leader.is_none());
}

#[test]
fn hybrid_machines_have_events_for_each_kind_of_core() {
    let found = events(ALDER_LAKE, RateOrPeriod::Rate(97.0)).unwrap();
    let on = |cpu| {
        let here = found.iter().filter(|event| event.on(CpuId(cpu)));
        here.map(shape)
            .map(|(name, kind, ..)| (name, kind))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        on(15),
        [
            ("cpu_core/mem-loads,ldlat=30/", 4),
            ("cpu_core/mem-stores/", 4)
        ]
    );
    assert_eq!(
        on(16),
        [
            ("cpu_atom/mem-loads,ldlat=30/", 10),
            ("cpu_atom/mem-stores/", 10)
        ]
    );
    assert_eq!(on(24), []);
}

#[test]
fn amd_samples_ops_without_the_kernels_where_it_can() {
    let found = events(ZEN_3, RateOrPeriod::Period(100_007)).unwrap();
    assert_eq!(
        shape(&found[0]),
        ("ibs_op/cnt_ctl/", 11, [1 << 19, 0, 0], 100_000)
    );
    assert_eq!(
        found[0].attributes.flags & (flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV),
        0
    );
    let found = events(ZEN_4, RateOrPeriod::Rate(97.0)).unwrap();
    assert_eq!(
        shape(&found[0]),
        ("ibs_op/cnt_ctl,swfilt/", 11, [1 << 19, 0, 1], 97)
    );
    assert!(found[0].attributes.flags & flag::EXCLUDE_KERNEL != 0);
    assert_eq!(found.len(), 1);
}

#[test]
fn arm_samples_loads_and_stores_into_the_aux_area() {
    let found = events(NEOVERSE, RateOrPeriod::Rate(97.0)).unwrap();
    let [spe] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(
        shape(spe),
        (
            "arm_spe_0/jitter,load_filter,store_filter/",
            9,
            [1 << 16 | 1 << 33 | 1 << 34, 0, 0],
            SPE_PERIOD
        )
    );
    assert!(spe.packets && spe.on(CpuId(79)) && !spe.on(CpuId(80)));
    // The driver accepts no frequency.
    assert_eq!(spe.attributes.flags & flag::FREQ, 0);
    let found = events(NEOVERSE, RateOrPeriod::Period(10)).unwrap();
    assert_eq!(found[0].attributes.sample_period, 1024);
}

#[test]
fn misses_of_the_tlb_are_filtered_by_hardware_that_can() {
    let options = PmuOptions {
        event: PmuEvent::DtlbMiss,
        ..PmuOptions::default()
    };
    let found = |files| {
        options
            .events(97.0, sys(files).path(), Path::new("/nowhere"))
            .unwrap()
    };
    let spe = &found(NEOVERSE)[0];
    assert_eq!(
        spe.name,
        "arm_spe_0/jitter,load_filter,store_filter,event_filter=0x20/"
    );
    assert_eq!(configuration(&spe.attributes)[1], 0x20);
    // Loads with low latency count, too.
    assert_eq!(found(SKYLAKE)[0].name, "cpu/mem-loads,ldlat=3/");
    assert_eq!(found(ZEN_3)[0].name, "ibs_op/cnt_ctl/");
    assert_eq!(options.min_latency_cycles(), 0);
}

#[test]
fn others_have_none_and_bad_ones_are_named() {
    let none: Files = &[("software/type", "1"), ("breakpoint/type", "5")];
    assert!(events(none, RateOrPeriod::Rate(97.0)).unwrap().is_empty());
    let odd: Files = &[
        ("cpu/type", "4"),
        ("cpu/events/mem-loads", "event=0xcd,odd=1"),
        ("cpu/format/event", "config:0-7"),
    ];
    let error = events(odd, RateOrPeriod::Rate(97.0)).unwrap_err();
    assert_eq!(error, "cpu: the kernel's formats have no `odd=1`");
}
