//! vLLM's `NixlAgentMetadata`, as of version 15 of its connector.

use std::{collections::BTreeMap, fmt};

use super::{
    CodecError,
    msgpack::{Reader, Writer},
    payload::{MAX_KEYS, MAX_PAYLOAD, MAX_TEXT, at_most},
};

/// Most regions of a rank: one per layer and tensor, some hundreds in practice.
pub const MAX_REGIONS: usize = 16_384;
/// Most names of layers, over all regions.
pub const MAX_NAMES: usize = 65_536;
/// Most blocks of a region.
pub const MAX_BLOCKS: u64 = 1 << 32;
/// Most ranks of a kind of parallelism.
const MAX_PARALLEL: u64 = 1024;

/// Everything that a reader has to know about one rank of a holder.
///
/// Lists by region all have the length of `kv_caches_base_addr`. [`AgentMetadata::decode`] and [`AgentMetadata::encode`] both check
/// what vLLM asserts of a peer on its own; whether the peer fits the local engine is the engine's to say.
#[derive(Clone, PartialEq, Eq)]
pub struct AgentMetadata {
    /// The engine that this rank belongs to.
    pub engine_id: String,
    /// NIXL's own description of the agent; hand it to NIXL as it is.
    pub agent_metadata: Vec<u8>,
    /// Where each region begins in the peer's memory.
    pub kv_caches_base_addr: Vec<u64>,
    /// The GPU, as NIXL numbers it.
    pub device_id: u32,
    /// Blocks of each region, 1 to [`MAX_BLOCKS`], unless `region_num_blocks` says otherwise.
    pub num_blocks: u64,
    /// Bytes of one block of each region, at least 1.
    pub block_lens: Vec<u64>,
    /// Bytes from one block to the next of each region, at least its block's.
    pub block_strides: Vec<u64>,
    /// The order of dimensions, such as `LBHNC`.
    pub kv_cache_layout: String,
    /// Tokens of a block, at least 1.
    pub block_size: u32,
    /// Bytes of the two parts of a state-space model's page; 0 without one.
    pub ssm_sizes: (u64, u64),
    /// The attention backend, such as `FLASH_ATTN`.
    pub attn_backend_name: String,
    /// Kernel blocks of one block that the scheduler counts, at least 1.
    pub physical_blocks_per_logical_kv_block: u32,
    /// Blocks of each region, where they differ.
    pub region_num_blocks: Option<Vec<u64>>,
    /// The KV cache group of each region.
    pub region_group_ids: Option<Vec<u32>>,
    /// The name of each region.
    pub region_names: Option<Vec<String>>,
    /// NIXL's memory type of each region, such as `VRAM`.
    pub region_mem_types: Option<Vec<String>>,
    /// Decode context parallel size, at least 1.
    pub dcp_size: u32,
    /// Prefill context parallel size, at least 1.
    pub pcp_size: u32,
    /// Bytes of a page of the PLE short-convolution state, for models that have one.
    pub ple_block_len: Option<u64>,
    /// Names of the layers that share each region; empty if not told.
    pub region_members: Vec<Vec<String>>,
    /// Of a layer packed with others: its offset in its region's block, and bytes per page.
    pub packed_member_layouts: BTreeMap<String, (u64, u64)>,
}

/// Without NIXL's bytes, whose keys open the memory to whoever has them.
impl fmt::Debug for AgentMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("AgentMetadata");
        shown.field("engine_id", &self.engine_id).field("agent_metadata", &format_args!("{} bytes", self.agent_metadata.len()));
        shown.field("regions", &self.kv_caches_base_addr.len()).field("num_blocks", &self.num_blocks);
        shown.field("block_lens", &self.block_lens).field("block_strides", &self.block_strides).finish_non_exhaustive()
    }
}

/// Empty, but for the values that vLLM takes for keys that are not there.
impl Default for AgentMetadata {
    fn default() -> Self {
        Self {
            engine_id: String::new(),
            agent_metadata: Vec::new(),
            kv_caches_base_addr: Vec::new(),
            device_id: 0,
            num_blocks: 0,
            block_lens: Vec::new(),
            block_strides: Vec::new(),
            kv_cache_layout: String::new(),
            block_size: 0,
            ssm_sizes: (0, 0),
            attn_backend_name: String::new(),
            physical_blocks_per_logical_kv_block: 1,
            region_num_blocks: None,
            region_group_ids: None,
            region_names: None,
            region_mem_types: None,
            dcp_size: 1,
            pcp_size: 1,
            ple_block_len: None,
            region_members: Vec::new(),
            packed_member_layouts: BTreeMap::new(),
        }
    }
}

/// In vLLM's order; the first [`REQUIRED`] have no default.
const KEYS: [&str; 21] = [
    "engine_id",
    "agent_metadata",
    "kv_caches_base_addr",
    "device_id",
    "num_blocks",
    "block_lens",
    "block_strides",
    "kv_cache_layout",
    "block_size",
    "ssm_sizes",
    "attn_backend_name",
    "physical_blocks_per_logical_kv_block",
    "region_num_blocks",
    "region_group_ids",
    "region_names",
    "region_mem_types",
    "dcp_size",
    "pcp_size",
    "ple_block_len",
    "region_members",
    "packed_member_layouts",
];
const REQUIRED: usize = 12;

impl AgentMetadata {
    /// Reads what a payload carries and checks it. Unknown keys are ignored; of a key that comes twice the last one counts.
    ///
    /// # Errors
    /// Anything that vLLM's decoder refuses, a bound of this module, or what [`AgentMetadata::check`] finds.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        at_most("payload", bytes.len(), MAX_PAYLOAD)?;
        let mut reader = Reader::new(bytes, "agent_metadata_bytes");
        let mut metadata = Self::default();
        let mut seen = [false; KEYS.len()];
        for _ in 0..reader.map_len(MAX_KEYS)? {
            let name = reader.at("agent_metadata_bytes").text(MAX_TEXT)?;
            match KEYS.iter().zip(&mut seen).find(|(key, _)| **key == name) {
                Some((key, seen)) => {
                    *seen = true;
                    metadata.read(key, reader.at(key))?;
                }
                None => reader.skip()?,
            }
        }
        reader.end()?;
        if let Some((key, _)) = KEYS.into_iter().zip(seen).take(REQUIRED).find(|(_, seen)| !seen) {
            return Err(CodecError::Missing { key });
        }
        metadata.check()?;
        Ok(metadata)
    }

    fn read(&mut self, key: &str, from: &mut Reader<'_>) -> Result<(), CodecError> {
        match key {
            "engine_id" => self.engine_id = from.name()?,
            "agent_metadata" => self.agent_metadata = from.bytes()?.to_owned(),
            "kv_caches_base_addr" => self.kv_caches_base_addr = from.list(MAX_REGIONS, Reader::number)?,
            "device_id" => self.device_id = from.int()?,
            "num_blocks" => self.num_blocks = from.number()?,
            "block_lens" => self.block_lens = from.list(MAX_REGIONS, Reader::number)?,
            "block_strides" => self.block_strides = from.list(MAX_REGIONS, Reader::number)?,
            "kv_cache_layout" => self.kv_cache_layout = from.name()?,
            "block_size" => self.block_size = from.int()?,
            "ssm_sizes" => self.ssm_sizes = from.pair()?,
            "attn_backend_name" => self.attn_backend_name = from.name()?,
            "physical_blocks_per_logical_kv_block" => self.physical_blocks_per_logical_kv_block = from.int()?,
            "region_num_blocks" => {
                self.region_num_blocks = from.optional(|from| from.list(MAX_REGIONS, Reader::number))?;
            }
            "region_group_ids" => self.region_group_ids = from.optional(|from| from.list(MAX_REGIONS, Reader::int))?,
            "region_names" => self.region_names = from.optional(|from| from.list(MAX_REGIONS, Reader::name))?,
            "region_mem_types" => self.region_mem_types = from.optional(|from| from.list(MAX_REGIONS, Reader::name))?,
            "dcp_size" => self.dcp_size = from.int()?,
            "pcp_size" => self.pcp_size = from.int()?,
            "ple_block_len" => self.ple_block_len = from.optional(Reader::number)?,
            "region_members" => self.region_members = read_members(from)?,
            _ => self.packed_member_layouts = read_layouts(from)?,
        }
        Ok(())
    }

    /// The bytes that vLLM's decoder takes: a map of all 21 keys.
    ///
    /// # Errors
    /// What [`AgentMetadata::check`] finds: it is not sent to anybody.
    pub fn encode(&self) -> Result<Vec<u8>, CodecError> {
        self.check()?;
        let mut writer = Writer::default();
        writer.map_len(KEYS.len());
        for key in KEYS {
            writer.text(key);
            self.write(key, &mut writer);
        }
        let bytes = writer.into_bytes();
        at_most("payload", bytes.len(), MAX_PAYLOAD)?;
        Ok(bytes)
    }

    fn write(&self, key: &str, to: &mut Writer) {
        let numbers = |to: &mut Writer, list: &Vec<u64>| to.list(list, |to, number| to.uint(*number));
        let names = |to: &mut Writer, list: &Vec<String>| to.list(list, |to, name| to.text(name));
        match key {
            "engine_id" => to.text(&self.engine_id),
            "agent_metadata" => to.bytes(&self.agent_metadata),
            "kv_caches_base_addr" => numbers(to, &self.kv_caches_base_addr),
            "device_id" => to.uint(self.device_id.into()),
            "num_blocks" => to.uint(self.num_blocks),
            "block_lens" => numbers(to, &self.block_lens),
            "block_strides" => numbers(to, &self.block_strides),
            "kv_cache_layout" => to.text(&self.kv_cache_layout),
            "block_size" => to.uint(self.block_size.into()),
            "ssm_sizes" => to.pair(self.ssm_sizes),
            "attn_backend_name" => to.text(&self.attn_backend_name),
            "physical_blocks_per_logical_kv_block" => to.uint(self.physical_blocks_per_logical_kv_block.into()),
            "region_num_blocks" => to.optional(self.region_num_blocks.as_ref(), numbers),
            "region_group_ids" => {
                to.optional(self.region_group_ids.as_ref(), |to, list| to.list(list, |to, id| to.uint((*id).into())))
            }
            "region_names" => to.optional(self.region_names.as_ref(), names),
            "region_mem_types" => to.optional(self.region_mem_types.as_ref(), names),
            "dcp_size" => to.uint(self.dcp_size.into()),
            "pcp_size" => to.uint(self.pcp_size.into()),
            "ple_block_len" => to.optional(self.ple_block_len, Writer::uint),
            "region_members" => to.list(&self.region_members, names),
            _ => {
                to.map_len(self.packed_member_layouts.len());
                for (name, layout) in &self.packed_member_layouts {
                    to.text(name);
                    to.pair(*layout);
                }
            }
        }
    }

    /// Whether it holds together: sizes and counts within bounds, lists of one length, no region that leaves the address space, no
    /// stride shorter than its block.
    ///
    /// # Errors
    /// The first thing that does not.
    pub fn check(&self) -> Result<(), CodecError> {
        let size = |key, got: u64, max| match got {
            got if (1..=max).contains(&got) => Ok(()),
            got => Err(CodecError::Range { key, got: got.into(), max }),
        };
        size("num_blocks", self.num_blocks, MAX_BLOCKS)?;
        size("block_size", self.block_size.into(), u32::MAX.into())?;
        size("physical_blocks_per_logical_kv_block", self.physical_blocks_per_logical_kv_block.into(), u32::MAX.into())?;
        size("dcp_size", self.dcp_size.into(), MAX_PARALLEL)?;
        size("pcp_size", self.pcp_size.into(), MAX_PARALLEL)?;
        if self.pcp_size > 1 && self.dcp_size != 1 && self.dcp_size != self.pcp_size {
            return Err(CodecError::Parallel { pcp: self.pcp_size, dcp: self.dcp_size });
        }
        size("kv_caches_base_addr", self.regions() as u64, MAX_REGIONS as u64)?;
        self.check_lengths()?;
        self.check_texts()?;
        for blocks in self.region_num_blocks.iter().flatten() {
            size("region_num_blocks", *blocks, MAX_BLOCKS)?;
        }
        (0..self.regions()).try_for_each(|region| Ok(self.layout(region).map(|_| ())?))
    }

    fn check_lengths(&self) -> Result<(), CodecError> {
        let regions = self.regions();
        let members = Some(self.region_members.len()).filter(|members| *members > 0);
        for (key, len) in [
            ("block_lens", Some(self.block_lens.len())),
            ("block_strides", Some(self.block_strides.len())),
            ("region_num_blocks", self.region_num_blocks.as_ref().map(Vec::len)),
            ("region_group_ids", self.region_group_ids.as_ref().map(Vec::len)),
            ("region_names", self.region_names.as_ref().map(Vec::len)),
            ("region_mem_types", self.region_mem_types.as_ref().map(Vec::len)),
            ("region_members", members),
        ] {
            if let Some(got) = len.filter(|len| *len != regions) {
                return Err(CodecError::Lengths { key, got, regions });
            }
        }
        at_most("region_members", self.region_members.iter().map(Vec::len).fold(0, usize::saturating_add), MAX_NAMES)?;
        at_most("packed_member_layouts", self.packed_member_layouts.len(), MAX_NAMES)
    }

    /// Longest text: our own side has to keep to what it takes from others.
    fn check_texts(&self) -> Result<(), CodecError> {
        let texts = [
            ("engine_id", &self.engine_id),
            ("kv_cache_layout", &self.kv_cache_layout),
            ("attn_backend_name", &self.attn_backend_name),
        ];
        let names = self.region_names.iter().flatten().map(|name| ("region_names", name));
        let types = self.region_mem_types.iter().flatten().map(|name| ("region_mem_types", name));
        let members = self.region_members.iter().flatten().map(|name| ("region_members", name));
        let packed = self.packed_member_layouts.keys().map(|name| ("packed_member_layouts", name));
        let mut all = texts.into_iter().chain(names).chain(types).chain(members).chain(packed);
        all.try_for_each(|(key, text)| at_most(key, text.len(), MAX_TEXT))
    }
}

/// All names together are bounded, whatever region they are of.
fn read_members(from: &mut Reader<'_>) -> Result<Vec<Vec<String>>, CodecError> {
    let mut left = MAX_NAMES;
    let mut regions = Vec::new();
    for _ in 0..from.list_len(MAX_REGIONS)? {
        let names = from.list(left, Reader::name)?;
        left = left.saturating_sub(names.len());
        regions.push(names);
    }
    Ok(regions)
}

fn read_layouts(from: &mut Reader<'_>) -> Result<BTreeMap<String, (u64, u64)>, CodecError> {
    let mut layouts = BTreeMap::new();
    for _ in 0..from.map_len(MAX_NAMES)? {
        layouts.insert(from.name()?, from.pair()?);
    }
    Ok(layouts)
}
