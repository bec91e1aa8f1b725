//! The bytes of the side channel, against those that msgspec 0.23 makes of vLLM 0.33's own classes.

use std::collections::BTreeMap;

use gpu_mem::Span;
use lease_proto::{time::PeerInstant, topology::Ranks};
use proptest::{collection::vec, prelude::*};
use transport_nixl::side_channel::{
    AgentMetadata, CodecError, LayoutError, MAX_BLOCKS, MAX_PAYLOAD, MAX_REGIONS, Payload, decode_request, decode_stamp,
    encode_request, encode_stamp,
};

/// `NixlAgentMetadata` with every key set.
const FULL: &str = "\
de0015a9656e67696e655f6964a8656e67696e652d31ae6167656e745f6d65746164617461c406006e69786cffb36b765f6361636865735f62617365\
5f6164647292cf00007f0000000000cf00007f0000100000a96465766963655f696401aa6e756d5f626c6f636b73cd012caa626c6f636b5f6c656e73\
92cd1000cd1000ad626c6f636b5f7374726964657392cd1000cd2000af6b765f63616368655f6c61796f7574a54c42484e43aa626c6f636b5f73697a\
6510a973736d5f73697a65739200ce00011170b16174746e5f6261636b656e645f6e616d65aa464c4153485f4154544ed924706879736963616c5f62\
6c6f636b735f7065725f6c6f676963616c5f6b765f626c6f636b01b1726567696f6e5f6e756d5f626c6f636b7392cd012cccc8b0726567696f6e5f67\
726f75705f696473920001ac726567696f6e5f6e616d657392a16ba176b0726567696f6e5f6d656d5f747970657392a45652414da44452414da86463\
705f73697a6501a87063705f73697a6501ad706c655f626c6f636b5f6c656ec0ae726567696f6e5f6d656d626572739291a26c3092a26c31a26c32b5\
7061636b65645f6d656d6265725f6c61796f75747382a26c319200cd0800a26c3292cd0800cd0800";

/// The same with the required keys only.
const REQUIRED: &str = "\
8ca9656e67696e655f6964a8656e67696e652d31ae6167656e745f6d65746164617461c406006e69786cffb36b765f6361636865735f626173655f61\
64647292cf00007f0000000000cf00007f0000100000a96465766963655f696401aa6e756d5f626c6f636b73cd012caa626c6f636b5f6c656e7392cd\
1000cd1000ad626c6f636b5f7374726964657392cd1000cd2000af6b765f63616368655f6c61796f7574a54c42484e43aa626c6f636b5f73697a6510\
a973736d5f73697a65739200ce00011170b16174746e5f6261636b656e645f6e616d65aa464c4153485f4154544ed924706879736963616c5f626c6f\
636b735f7065725f6c6f676963616c5f6b765f626c6f636b01";

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn required() -> AgentMetadata {
    AgentMetadata {
        engine_id: "engine-1".into(),
        agent_metadata: b"\0nixl\xFF".to_vec(),
        kv_caches_base_addr: vec![0x7F00_0000_0000, 0x7F00_0010_0000],
        device_id: 1,
        num_blocks: 300,
        block_lens: vec![4096, 4096],
        block_strides: vec![4096, 8192],
        kv_cache_layout: "LBHNC".into(),
        block_size: 16,
        ssm_sizes: (0, 70_000),
        attn_backend_name: "FLASH_ATTN".into(),
        ..AgentMetadata::default()
    }
}

fn full() -> AgentMetadata {
    AgentMetadata {
        region_num_blocks: Some(vec![300, 200]),
        region_group_ids: Some(vec![0, 1]),
        region_names: Some(vec!["k".into(), "v".into()]),
        region_mem_types: Some(vec!["VRAM".into(), "DRAM".into()]),
        region_members: vec![vec!["l0".into()], vec!["l1".into(), "l2".into()]],
        packed_member_layouts: BTreeMap::from([("l1".into(), (0, 2048)), ("l2".into(), (2048, 2048))]),
        ..required()
    }
}

#[test]
fn metadata_is_what_vllm_makes_of_it() {
    assert_eq!(AgentMetadata::decode(&bytes(FULL)), Ok(full()));
    assert_eq!(full().encode().unwrap(), bytes(FULL));
}

#[test]
fn keys_that_are_not_there_have_vllms_defaults() {
    assert_eq!(AgentMetadata::decode(&bytes(REQUIRED)), Ok(required()));
}

#[test]
fn the_payload_carries_bytes_not_text() {
    let payload = Payload { compatibility_hash: "ab".repeat(32), agent_metadata_bytes: bytes(FULL) };
    let encoded = payload.encode().unwrap();
    assert!(encoded.starts_with(b"\x82\xB2compatibility_hash\xD9\x40abab"));
    assert!(encoded.windows(24).any(|window| window == b"\xB4agent_metadata_bytes\xC5\x01\xCC"));
    assert_eq!(Payload::decode(&encoded), Ok(payload));
}

#[test]
fn requests_are_vllms() {
    assert_eq!(encode_request(Ranks { pp: 0, tp: 0 }), bytes("93c40c6765745f6d6574615f6d73670000"));
    assert_eq!(encode_request(Ranks { pp: 1, tp: 300 }), bytes("93c40c6765745f6d6574615f6d736701cd012c"));
}

/// Whatever width Python's encoders choose.
#[test]
fn requests_may_carry_integers_of_any_width() {
    for seven in
        ["07", "cc07", "cd0007", "ce00000007", "cf0000000000000007", "d007", "d10007", "d200000007", "d30000000000000007"]
    {
        for list in ["93", "dc0003", "dd00000003"] {
            for bin in ["c40c", "c5000c", "c60000000c"] {
                let request = bytes(&format!("{list}{bin}6765745f6d6574615f6d7367{seven}{seven}"));
                assert_eq!(decode_request(&request), Ok(Ranks { pp: 7, tp: 7 }), "{request:02x?}");
            }
        }
    }
}

#[test]
fn what_is_no_request_is_told_why() {
    let good = "93c40c6765745f6d6574615f6d7367";
    let key = |hex: String| match decode_request(&bytes(&hex)).unwrap_err() {
        CodecError::Truncated { key } | CodecError::Type { key, .. } | CodecError::Range { key, .. } => key,
        CodecError::TooLong { key, .. } => key,
        CodecError::Trailing { .. } => "after",
        other => panic!("{other}"),
    };
    assert_eq!(key(String::new()), "request");
    assert_eq!(key("92c40c6765745f6d6574615f6d736700".into()), "request", "two values");
    assert_eq!(key("94c40c6765745f6d6574615f6d7367000000".into()), "request", "four values");
    assert_eq!(key("93ac6765745f6d6574615f6d73670000".into()), "request", "text instead of bytes");
    assert_eq!(key("93c40c6765745f6d6574615f6d73680000".into()), "request", "other bytes");
    assert_eq!(key("93c6ffffffff67".into()), "request", "a claim of 4 GiB");
    assert_eq!(key(format!("{good}ff00")), "pp_rank", "negative");
    assert_eq!(key(format!("{good}00a130")), "tp_rank", "text");
    assert_eq!(key(format!("{good}00cb0000000000000000")), "tp_rank", "a float");
    assert_eq!(key(format!("{good}00cf0000000100000000")), "tp_rank", "above 32 bits");
    assert_eq!(key(format!("{good}00")), "tp_rank", "cut off");
    assert_eq!(key(format!("{good}000000")), "after");
}

#[test]
fn stamps_are_floats_of_64_bits() {
    assert_eq!(encode_stamp(12345.678), bytes("cb40c81cd6c8b43958"));
    assert_eq!(decode_stamp(&encode_stamp(12345.678)), Ok(PeerInstant::from_nanos(12_345_678_000_000)));
    assert_eq!(decode_stamp(&encode_stamp(0.0)), Ok(PeerInstant::ZERO));
    for wrong in [f64::NAN, f64::INFINITY, -1.0, 1e300, 1.9e10] {
        assert!(decode_stamp(&encode_stamp(wrong)).is_err(), "{wrong}");
    }
    for wrong in ["", "cb40c81c", "ca40c81cd6", "00", "cb40c81cd6c8b4395800"] {
        assert!(decode_stamp(&bytes(wrong)).is_err(), "{wrong}");
    }
}

/// `FULL` with the value of `key`, whose msgpack is `was`, replaced.
fn replaced(key: &str, was: &str, by: &str) -> Vec<u8> {
    let name: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(FULL.matches(&format!("{name}{was}")).count(), 1, "{key}");
    bytes(&FULL.replace(&format!("{name}{was}"), &format!("{name}{by}")))
}

#[test]
fn an_error_names_the_key_of_a_wrong_type() {
    for (key, was, by) in [
        ("engine_id", "a8656e67696e652d31", "c408656e67696e652d31"),
        ("engine_id", "a8656e67696e652d31", "a8656e67696e652dff"),
        ("agent_metadata", "c406006e69786cff", "a6006e69786c2e"),
        ("device_id", "01", "c0"),
        ("num_blocks", "cd012c", "cb4072c00000000000"),
        ("block_lens", "92cd1000cd1000", "c0"),
        ("ssm_sizes", "9200ce00011170", "9100"),
        ("region_names", "92a16ba176", "920000"),
        ("region_members", "9291a26c3092a26c31a26c32", "92a26c30a26c31"),
        ("packed_member_layouts", "82a26c319200cd0800a26c3292cd0800cd0800", "90"),
    ] {
        match AgentMetadata::decode(&replaced(key, was, by)) {
            Err(CodecError::Type { key: named, .. }) => assert_eq!(named, key),
            other => panic!("{key}: {other:?}"),
        }
    }
}

#[test]
fn an_error_names_the_required_key_that_is_missing() {
    let without_last = bytes(&REQUIRED.replacen("8c", "8b", 1));
    let last = b"\xD9\x24physical_blocks_per_logical_kv_block\x01";
    let cut = without_last.strip_suffix(last.as_slice()).unwrap();
    assert_eq!(AgentMetadata::decode(cut), Err(CodecError::Missing { key: "physical_blocks_per_logical_kv_block" }));
    assert_eq!(AgentMetadata::decode(b"\x80"), Err(CodecError::Missing { key: "engine_id" }));
    assert_eq!(Payload::decode(b"\x80"), Err(CodecError::Missing { key: "compatibility_hash" }));
    assert_eq!(Payload::decode(b"\x81\xB2compatibility_hash\xA0"), Err(CodecError::Missing { key: "agent_metadata_bytes" }));
}

#[test]
fn unknown_keys_are_read_over_however_deep_they_are() {
    let deep = [&[0x91u8; 5000][..], &[0xC0]].concat();
    let ext = b"\xC7\x03\x01abc".to_vec();
    let map = b"\x82\x01\x92\xCB\0\0\0\0\0\0\0\0\xD9\x01a\xC4\x01b\xD4\x01\xFF".to_vec();
    for value in [deep, ext, map] {
        let metadata = [b"\x8D\xA6future", &value[..], &bytes(REQUIRED)[1..]].concat();
        assert_eq!(AgentMetadata::decode(&metadata), Ok(required()));
        let payload = Payload { compatibility_hash: "h".into(), agent_metadata_bytes: metadata };
        let encoded = payload.encode().unwrap();
        let longer = [b"\x83\xA6future", &value[..], &encoded[1..]].concat();
        assert_eq!(Payload::decode(&longer), Ok(payload));
    }
}

/// A few bytes must not cost more than a few bytes.
#[test]
fn claims_are_not_allocated() {
    for claim in ["ddffffffff", "dfffffffff", "c6ffffffff", "dbffffffff", "c9ffffffff01"] {
        assert!(Payload::decode(&bytes(claim)).is_err());
        assert!(AgentMetadata::decode(&bytes(claim)).is_err());
        let unknown = bytes(&format!("81a66675747572{}{claim}", "65"));
        assert!(matches!(AgentMetadata::decode(&unknown), Err(CodecError::Truncated { .. })), "{claim}");
        assert!(AgentMetadata::decode(&replaced("kv_caches_base_addr", "92", claim)).is_err());
    }
    let just_within = replaced("kv_caches_base_addr", "92", &format!("dd{:08x}", MAX_REGIONS));
    assert!(AgentMetadata::decode(&just_within).is_err());
    let beyond = replaced("kv_caches_base_addr", "92", &format!("dd{:08x}", MAX_REGIONS + 1));
    let got = MAX_REGIONS + 1;
    assert_eq!(AgentMetadata::decode(&beyond), Err(CodecError::TooLong { key: "kv_caches_base_addr", got, max: MAX_REGIONS }));
    let large = vec![0; MAX_PAYLOAD + 1];
    assert!(matches!(Payload::decode(&large), Err(CodecError::TooLong { key: "payload", .. })));
}

#[test]
fn what_does_not_hold_together_is_neither_taken_nor_sent() {
    fn refused(change: impl Fn(&mut AgentMetadata)) -> CodecError {
        let mut metadata = full();
        change(&mut metadata);
        assert_eq!(metadata.encode(), Err(metadata.check().unwrap_err()));
        metadata.check().unwrap_err()
    }
    assert_eq!(refused(|m| m.block_lens.truncate(1)), CodecError::Lengths { key: "block_lens", got: 1, regions: 2 });
    assert_eq!(refused(|m| m.block_strides.push(1)), CodecError::Lengths { key: "block_strides", got: 3, regions: 2 });
    assert_eq!(
        refused(|m| m.region_num_blocks = Some(vec![])),
        CodecError::Lengths { key: "region_num_blocks", got: 0, regions: 2 }
    );
    assert_eq!(refused(|m| m.region_members.truncate(1)), CodecError::Lengths { key: "region_members", got: 1, regions: 2 });
    assert_eq!(refused(|m| m.num_blocks = 0), CodecError::Range { key: "num_blocks", got: 0, max: MAX_BLOCKS });
    assert!(matches!(refused(|m| m.num_blocks = MAX_BLOCKS + 1), CodecError::Range { key: "num_blocks", .. }));
    assert!(matches!(refused(|m| m.region_num_blocks = Some(vec![1, 0])), CodecError::Range { key: "region_num_blocks", .. }));
    assert!(matches!(refused(|m| m.block_size = 0), CodecError::Range { key: "block_size", .. }));
    assert!(matches!(refused(|m| m.dcp_size = 0), CodecError::Range { key: "dcp_size", .. }));
    assert_eq!(
        refused(|m| {
            m.pcp_size = 4;
            m.dcp_size = 2;
        }),
        CodecError::Parallel { pcp: 4, dcp: 2 }
    );
    assert!(matches!(refused(|m| m.block_strides = vec![4095, 8192]), CodecError::Region(LayoutError::Blocks { region: 0, .. })));
    assert!(matches!(refused(|m| m.block_lens = vec![4096, 0]), CodecError::Region(LayoutError::Blocks { region: 1, .. })));
    assert!(matches!(
        refused(|m| m.kv_caches_base_addr = vec![1, u64::MAX - 4096]),
        CodecError::Region(LayoutError::Blocks { region: 1, .. })
    ));
    assert!(matches!(refused(|m| m.engine_id = "x".repeat(1025)), CodecError::TooLong { key: "engine_id", .. }));
    let no_regions = refused(|m| {
        m.kv_caches_base_addr.clear();
        m.block_lens.clear();
        m.block_strides.clear();
    });
    assert!(matches!(no_regions, CodecError::Range { key: "kv_caches_base_addr", got: 0, .. }));
}

#[test]
fn a_block_lies_at_its_stride() {
    let metadata = full();
    let at = |start| Ok(Span { start, len: 4096 });
    let none =
        |region, got, num_blocks| Err(LayoutError::Blocks { region, cause: gpu_mem::LayoutError::Block { got, num_blocks } });
    assert_eq!(metadata.block(0, 299), at(0x7F00_0000_0000 + 299 * 4096));
    assert_eq!(metadata.block(1, 199), at(0x7F00_0010_0000 + 199 * 8192));
    assert_eq!(metadata.block(1, 200), none(1, 200, 200));
    assert_eq!(metadata.block(0, u64::MAX), none(0, u64::MAX, 300));
    assert_eq!(metadata.block(2, 0), Err(LayoutError::Region { got: 2, regions: 2 }));
    assert_eq!(required().block(1, 299), at(0x7F00_0010_0000 + 299 * 8192));
    let unchecked = AgentMetadata { kv_caches_base_addr: vec![u64::MAX - 10, u64::MAX - 10], ..required() };
    let overflow = |region| matches!(unchecked.block(region, 0), Err(LayoutError::Blocks { region: got, .. }) if got == region);
    assert!(overflow(0) && overflow(1));
}

fn metadata() -> impl Strategy<Value = AgentMetadata> {
    let region = (0..u64::MAX / 2, 1..1u64 << 20, 0..1u64 << 20, 1..MAX_BLOCKS, any::<u32>(), ".{0,20}");
    let rest = (".{0,60}", vec(any::<u8>(), 0..300), any::<u32>(), any::<(u64, u64)>(), any::<Option<u64>>(), any::<[bool; 4]>());
    (vec(region, 1..40), rest).prop_map(|(regions, (engine_id, agent_metadata, device_id, ssm_sizes, ple_block_len, given))| {
        let [blocks, groups, names, members] = given;
        AgentMetadata {
            engine_id,
            agent_metadata,
            device_id,
            ssm_sizes,
            ple_block_len,
            num_blocks: regions[0].3,
            block_size: device_id.max(1),
            kv_caches_base_addr: regions.iter().map(|region| region.0).collect(),
            block_lens: regions.iter().map(|region| region.1).collect(),
            block_strides: regions.iter().map(|region| region.1 + region.2).collect(),
            region_num_blocks: blocks.then(|| regions.iter().map(|region| region.3).collect()),
            region_group_ids: groups.then(|| regions.iter().map(|region| region.4).collect()),
            region_names: names.then(|| regions.iter().map(|region| region.5.clone()).collect()),
            region_members: regions.iter().filter(|_| members).map(|region| vec![region.5.clone()]).collect(),
            packed_member_layouts: regions.iter().map(|region| (region.5.clone(), (region.0, region.1))).collect(),
            ..AgentMetadata::default()
        }
    })
}

proptest! {
    #[test]
    fn metadata_comes_back(metadata in metadata()) {
        prop_assert_eq!(AgentMetadata::decode(&metadata.encode().unwrap()), Ok(metadata));
    }

    #[test]
    fn payloads_come_back(compatibility_hash in ".{0,100}", agent_metadata_bytes in vec(any::<u8>(), 0..1000)) {
        let payload = Payload { compatibility_hash, agent_metadata_bytes };
        prop_assert_eq!(Payload::decode(&payload.encode().unwrap()), Ok(payload));
    }

    #[test]
    fn requests_come_back(pp: u32, tp: u32) {
        prop_assert_eq!(decode_request(&encode_request(Ranks { pp, tp })), Ok(Ranks { pp, tp }));
    }

    /// A float holds whole nanoseconds for three months, and every one to a millionth of a second for 400 years.
    #[test]
    fn stamps_come_back(nanos in 0..1u64 << 63) {
        let seconds = nanos as f64 / 1e9;
        let back = decode_stamp(&encode_stamp(seconds)).unwrap().as_nanos();
        prop_assert!(back.abs_diff(nanos) <= if nanos < 1 << 52 { 1 } else { 4096 }, "{} for {}", back, nanos);
    }

    #[test]
    fn no_bytes_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = (Payload::decode(&bytes), AgentMetadata::decode(&bytes), decode_request(&bytes), decode_stamp(&bytes));
    }

    /// Damage to what is right gets deeper than noise.
    #[test]
    fn no_damage_panics(damage in vec((0..540usize, any::<u8>()), 1..4), cut in 0..600usize) {
        let mut metadata = bytes(FULL);
        for (at, byte) in damage {
            if let Some(old) = metadata.get_mut(at) {
                *old = byte;
            }
        }
        metadata.truncate(cut);
        if let Ok(metadata) = AgentMetadata::decode(&metadata) {
            // What is taken has every block that it says it has.
            for region in 0..metadata.regions() {
                metadata.block(region, metadata.blocks(region).unwrap() - 1).unwrap();
            }
        }
    }
}
