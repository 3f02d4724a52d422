// Declarations in the place of Poplar's host headers, which are not public: a fake for the compiler alone. Nothing here
// is defined, and nothing can be linked. `./dev headers DIR` puts it behind every closed include path (poplar/, gcl/,
// gccs/, popdist/, popef/) and compiles our IPU sources against it together with the open headers of PopART and
// PopLibs.
//
// What it offers is what those open sources use. It is wider than the emulated machine (host/src/emulator/include) on
// purpose: that one declares what our program may call, this one what others call, so that a call which compiles
// against both is one that public code makes in the same form. It says nothing about what no public source uses.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#define GC_DEPRECATED

namespace poplar {

// ---- values
// ----------------------------------------------------------------------------------------------------------

struct poplar_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct graph_connection_error : poplar_error {
  using poplar_error::poplar_error;
};
struct graph_memory_allocation_error : poplar_error {
  using poplar_error::poplar_error;
  class ProfilePath {
   public:
    std::string getProfilePath() const;
  };
  std::string profilePath;
};
struct invalid_option : poplar_error {
  using poplar_error::poplar_error;
};
struct invalid_tile_mapping : poplar_error {
  using poplar_error::poplar_error;
};

template <class T>
class ArrayRef {
 public:
  using value_type = T;
  using const_iterator = const T*;
  ArrayRef();
  ArrayRef(std::nullptr_t) = delete;
  ArrayRef(const T* data, std::size_t n);
  ArrayRef(const T* begin, const T* end);
  template <class A>
  ArrayRef(const std::vector<T, A>& v);
  template <std::size_t n>
  ArrayRef(const std::array<T, n>& v);
  template <std::size_t n>
  constexpr ArrayRef(const T (&v)[n]);
  ArrayRef(std::initializer_list<T> v);
  const T* data() const;
  std::size_t size() const;
  bool empty() const;
  const T* begin() const;
  const T* end() const;
  const T& front() const;
  const T& back() const;
  const T& operator[](std::size_t i) const;
  bool equals(ArrayRef other) const;
  std::vector<T> cloneAsVector() const;
  operator std::vector<T>() const;
};

class StringRef {
 public:
  StringRef();
  StringRef(const char* text);
  StringRef(const std::string& text);
  const char* data() const;
  std::size_t size() const;
  bool empty() const;
  std::string cloneAsString() const;
  operator std::string() const;
};
bool operator==(StringRef, StringRef);
bool operator!=(StringRef, StringRef);
bool operator<(StringRef, StringRef);
std::ostream& operator<<(std::ostream&, StringRef);

class Type {
 public:
  Type();
  std::string toString() const;
  bool requiresMetadata() const;
  bool operator==(const Type& other) const;
  bool operator!=(const Type& other) const;
  bool operator<(const Type& other) const;
  bool isHostDevice() const;
};
std::ostream& operator<<(std::ostream&, const Type&);
extern Type BOOL, CHAR, UNSIGNED_CHAR, SIGNED_CHAR, SHORT, UNSIGNED_SHORT, INT, UNSIGNED_INT, LONG, UNSIGNED_LONG,
    LONGLONG, UNSIGNED_LONGLONG, HALF, FLOAT, DOUBLE, QUARTER, QUARTER_METADATA;
template <class T>
struct equivalent_device_type {
  Type value;
};
template <class T>
constexpr bool isHostDevice();

struct TypeTraits {
  template <class T>
  static TypeTraits make();
  template <class T>
  static constexpr bool isSimpleType() {
    return std::is_arithmetic_v<T>;
  }
  static bool isSimpleType(const Type&);
  std::size_t size, align;
  bool isFloat, isIntegral, isSigned;
};

enum class QuarterMetadataFormat { F143, F152 };
class QuarterMetadata {
 public:
  using Format = QuarterMetadataFormat;
  QuarterMetadata();
  QuarterMetadata(Format format, signed char scale);
  explicit QuarterMetadata(unsigned char);
  Format getFormat() const;
  signed char getScale() const;
  unsigned char getBinary() const;
};
std::string toString(QuarterMetadata::Format);
std::ostream& operator<<(std::ostream&, const QuarterMetadata&);

template <class T>
struct GenericInterval {
  GenericInterval();
  GenericInterval(T begin, T end);
  const T& begin() const;
  const T& end() const;
  const T& lower() const;
  const T& upper() const;
  T size() const;
  bool operator==(const GenericInterval&) const;
  bool operator!=(const GenericInterval&) const;
  bool operator<(const GenericInterval&) const;
};
using Interval = GenericInterval<std::size_t>;
std::ostream& operator<<(std::ostream&, const Interval&);

class ProfileValue {
 public:
  using String = std::string;
  using Number = double;
  using Boolean = bool;
  using Map = std::map<std::string, ProfileValue>;
  using Vector = std::vector<ProfileValue>;
  ProfileValue();
  template <class T>
  ProfileValue(const T& value);
  ProfileValue& operator[](StringRef key);
  const ProfileValue& operator[](StringRef key) const;
  const ProfileValue& operator[](std::size_t index) const;
  const String& asString() const;
  int asInt() const;
  double asDouble() const;
  bool asBool() const;
  std::size_t sumSizeT() const;
  const Map& asMap() const;
  const Vector& asVector() const;
  std::size_t size() const;
};
using ProfileValueMap = ProfileValue::Map;
template <class T>
ProfileValue getAsProfileValue(const T&);

class SourceLocation {
 public:
  SourceLocation();
  SourceLocation(StringRef function, StringRef file, unsigned line);
  static SourceLocation Current();
  const std::string& getFunctionName() const;
  const std::string& getFileName() const;
  unsigned getLineNumber() const;
  bool isValid() const;
};
using DebugId = std::uint64_t;
class DebugInfo;
class DebugNameAndId {
 public:
  DebugNameAndId(std::string name = "", DebugId id = {}, std::string parent = "");
  DebugNameAndId(const char* name);
  DebugNameAndId(DebugId id);
  DebugNameAndId(const DebugInfo& info, std::string name = "");
  DebugNameAndId(const DebugNameAndId& parent, StringRef name);
  std::string getName() const;
  std::string getPathName() const;
  DebugId getId() const;
};
class DebugContext {
 public:
  DebugContext(SourceLocation location = SourceLocation::Current());
  DebugContext(const char* name, SourceLocation location = SourceLocation::Current());
  DebugContext(StringRef name, SourceLocation location = SourceLocation::Current());
  DebugContext(std::string name, SourceLocation location = SourceLocation::Current());
  DebugContext(const DebugInfo& info, std::string name = "", SourceLocation location = SourceLocation::Current());
  DebugContext(const DebugNameAndId& id, std::string name = "", SourceLocation location = SourceLocation::Current());
  DebugContext(const DebugContext& parent, StringRef name);
  DebugContext(const DebugContext&);
  DebugContext(DebugContext&&);
  DebugContext& operator=(const DebugContext&);
  ~DebugContext();
  std::string getPathName() const;
  std::string getName() const;
  SourceLocation getLocation() const;
};
enum class DebugSerializationFormat { JSON, CBOR };
class DebugInfo {
 public:
  DebugInfo(const DebugContext& context, std::string layer);
  DebugInfo(const DebugInfo&) = delete;
  virtual ~DebugInfo();
  DebugId getId() const;
  std::string getPathName() const;
  bool setValue(std::string name, const ProfileValue& value);
  static void initializeStreamer(const std::string& file,
                                 const DebugSerializationFormat& = DebugSerializationFormat::CBOR);
  static void closeStreamer();
};

class OptionFlags {
 public:
  using OptionFlag = std::pair<const std::string, std::string>;
  using iterator = std::map<std::string, std::string>::const_iterator;
  OptionFlags();
  OptionFlags(std::initializer_list<OptionFlag> flags);
  void set(std::initializer_list<OptionFlag> flags);
  void set(StringRef key, StringRef value);
  StringRef at(StringRef key) const;
  std::string& operator[](StringRef key);
  iterator begin() const;
  iterator end() const;
  bool operator==(const OptionFlags&) const;
  bool operator<(const OptionFlags&) const;
  void clear();
};
std::ostream& operator<<(std::ostream&, const OptionFlags&);

struct replication_factor {
  explicit constexpr replication_factor(unsigned count);
  unsigned count;
};

// ---- targets and devices
// ---------------------------------------------------------------------------------------------

enum class TargetType { IPU, IPU_MODEL, CPU };
std::string toString(TargetType);
std::ostream& operator<<(std::ostream&, TargetType);
enum class IpuLinkConfiguration { Default, BarleyTwist, SlidingWindow, None };
enum class IpuLinkTopology { Mesh, Torus, Line };
enum class SyncType { INTERNAL, EXTERNAL, GLOBAL };
enum class TensorCloneMethod {
  PRESERVE_ORDER_AND_ALIASES,
  CREATE_NEW_ORDER,
  PRESERVE_ORDER_UNLESS_ALIASES,
  GATHER_AND_PRESERVE_TILE_ORDER_AND_ALIASES
};
std::string toString(TensorCloneMethod);
enum class VariableMappingMethod { NONE, LINEAR };
enum class UpperBoundMode { NO_HINT, SINGLE_SLICE };
enum class ReplicatedStreamMode { REPLICATE, BROADCAST };
enum class CodeletFileType { PreprocessedAsmSource, AsmSource, CppSource, CSource, IrSource, Object, Auto };
enum class VectorLayout {
  NOT_VECTOR,
  SPAN,
  SHORT_SPAN,
  ONE_PTR,
  SCALED_PTR32,
  SCALED_PTR64,
  SCALED_PTR128,
  NOT_APPLICABLE
};
enum class VectorListLayout { DELTAN, DELTANELEMENTS, COMPACT_DELTAN };
enum class FunctionBufferMappingType { NONE, CONSTANTS, REMOTE };
enum class PlatformNumericFeature { NONE };

struct TargetSystemVersion;
class Target {
 public:
  Target();
  bool operator==(const Target&) const;
  bool operator!=(const Target&) const;
  bool operator<(const Target&) const;
  static Target createCPUTarget(bool accurateHalf = false, unsigned numIPUs = 1);
  static Target createIPUTarget(unsigned numIPUs, StringRef arch, const OptionFlags& = {});
  static Target createIPUTarget(unsigned numIPUs, unsigned tilesPerIPU, StringRef arch, const OptionFlags& = {});
  TargetType getTargetType() const;
  std::string getTargetArchString() const;
  const OptionFlags& getTargetOptions() const;
  StringRef getTargetSystemString() const;
  unsigned getNumIPUs() const;
  unsigned getTilesPerIPU() const;
  unsigned getNumTiles() const;
  std::uint64_t getMemoryBytes() const;
  unsigned getBytesPerTile() const;
  unsigned getNumWorkerContexts() const;
  unsigned getExchangeBytesPerCycleInt() const;
  double getExchangeBytesPerCycle() const;
  unsigned getTilesPerSharedExchangeBus() const;
  unsigned getAtomicStoreGranularity() const;
  double getTileClockFrequency() const;
  std::size_t getTypeSize(const Type&) const;
  unsigned getVectorWidth(const Type&) const;
  unsigned getFloatVectorWidth() const;
  unsigned getHalfVectorWidth() const;
  unsigned getDataPathWidth() const;
  unsigned getNumStrideBits() const;
  unsigned getWeightsPerConvUnit(bool floatActivations) const;
  unsigned getConvUnitInputLoadElemsPerCycle(const Type&) const;
  unsigned getConvUnitMaxPipelineDepth(const Type&) const;
  unsigned getNumConvUnits(const Type&, const Type&) const;
  unsigned getConvUnitCoeffLoadBytesPerCycle() const;
  unsigned getRptCountMax() const;
  bool supportsExchangeBusSharing() const;
  bool supportsInterleavedMemory() const;
  unsigned getInterleavedMemoryElementIndex() const;
  std::vector<unsigned> getMemoryElementOffsets() const;
  unsigned getMaxImplementedIPUs() const;
  IpuLinkConfiguration getIpuLinkConfiguration() const;
  IpuLinkTopology getIpuLinkTopology() const;
  bool getGatewayMode() const;
  Target createVirtualTarget(unsigned numIPUs, unsigned tilesPerIPU) const;
};
void copyDeviceHalfToFloat(const Target&, const void* src, float* dst, std::size_t n);
void copyFloatToDeviceHalf(const Target&, const float* src, void* dst, std::size_t n);
void copyDeviceHalfToDouble(const Target&, const void* src, double* dst, std::size_t n);
void copyDoubleToDeviceHalf(const Target&, const double* src, void* dst, std::size_t n);

class Device {
 public:
  Device();
  Device(Device&&);
  Device& operator=(Device&&);
  ~Device();
  unsigned getId() const;
  const Target& getTarget() const;
  bool attach() const;
  void detach() const;
  bool hasGateway() const;
  std::vector<int> getDriverIDs() const;
  std::map<std::string, std::string> getAttributes() const;
  std::vector<unsigned> getNumaTopology() const;
  void getDriverVersion(unsigned& major, unsigned& minor, unsigned& point) const;
  bool supportsRemoteBuffers() const;
  Device createVirtualDevice(unsigned tilesPerIPU);
  static Device createCPUDevice(unsigned numIPUs = 1);
  static Device createSimulatorDevice(const Target&, const OptionFlags& = {});
};
class DeviceManager {
 public:
  static DeviceManager createDeviceManager();
  DeviceManager();
  DeviceManager(DeviceManager&&);
  ~DeviceManager();
  std::vector<Device> getDevices() const;
  std::vector<Device> getDevices(TargetType, unsigned requiredNumIpus, const OptionFlags& = {}) const;
  Device getDevice(unsigned id, const OptionFlags& = {}) const;
};
struct IPUModel {
  explicit IPUModel(const char* arch = "ipu2");
  unsigned numIPUs, tilesPerIPU, numWorkerContexts, bytesPerTile;
  bool compileIPUCode, accurateHalf;
  Device createDevice(const OptionFlags& = {}) const;
};

// ---- tensors
// ---------------------------------------------------------------------------------------------------------

class VariableRef {
 public:
  std::string getName() const;
  unsigned getId() const;
  bool operator==(const VariableRef&) const;
};
struct VariableInterval {
  VariableRef var;
  Interval interval;
};
class Tensor {
 public:
  Tensor();
  std::string getDebugStr() const;
  std::string getVarStr() const;
  Type elementType() const;
  const std::vector<std::size_t>& shape() const;
  const std::vector<std::size_t>& strides() const;
  std::vector<std::size_t> strideAfter() const;
  std::size_t dim(unsigned i) const;
  unsigned rank() const;
  std::size_t numElements() const;
  bool valid() const;
  bool hasMetadata() const;
  Tensor getMetadata() const;
  Tensor operator[](std::size_t i) const&;
  Tensor operator[](std::size_t i) &&;
  Tensor operator()(std::size_t i) const;
  Tensor index(ArrayRef<std::size_t> indices) const;
  Tensor slice(std::size_t begin, std::size_t end, unsigned dimension) const;
  Tensor slice(std::size_t begin, std::size_t end) const;
  Tensor slice(const Interval& region, unsigned dimension = 0) const;
  Tensor slice(ArrayRef<std::size_t> begin, ArrayRef<std::size_t> end) const;
  std::vector<Tensor> slices(ArrayRef<Interval> intervals, unsigned dimension = 0) const;
  std::vector<Tensor> slices(const std::vector<std::vector<Interval>>& intervals, unsigned dimension = 0) const;
  Tensor subSample(unsigned stride, unsigned dimension) const;
  Tensor flatten() const;
  Tensor flatten(unsigned dimBegin, unsigned dimEnd) const;
  Tensor reshape(ArrayRef<std::size_t> shape) const;
  Tensor reshapePartial(unsigned begin, unsigned end, ArrayRef<std::size_t> newDims) const;
  Tensor expand(ArrayRef<std::size_t> indices) const;
  Tensor squeeze(ArrayRef<std::size_t> indices) const;
  Tensor dimShuffle(ArrayRef<unsigned> permutation) const;
  Tensor dimShufflePartial(ArrayRef<unsigned> source, ArrayRef<unsigned> destination) const;
  Tensor dimRoll(unsigned dimIdx, unsigned newIdx = 0) const;
  Tensor reverse(unsigned dimension) const;
  Tensor transpose() const;
  Tensor broadcast(unsigned n, unsigned dimension) const;
  Tensor reinterpret(const Type&) const;
  bool containsAliases() const;
  bool containsConstant() const;
  bool isParallelWriteable() const;
  bool isContiguous() const;
  bool isAliasOf(const Tensor&) const;
  bool intersectsWith(const Tensor&) const;
  bool shapeEqual(const Tensor&) const;
  const std::vector<Interval> getContiguousRegions() const;
  const std::vector<VariableInterval> getVarRegions() const;
  template <class T>
  bool getConstantValue(T* value) const;
  std::string shapeToString() const;
  bool operator==(const Tensor&) const;
  bool operator!=(const Tensor&) const;
  std::ostream& output(std::ostream&) const;
  void dump() const;
};
std::ostream& operator<<(std::ostream&, const Tensor&);
Tensor concat(ArrayRef<Tensor> tensors, unsigned dimension = 0);
Tensor concat(const Tensor& a, const Tensor& b, unsigned dimension = 0);
Tensor append(const Tensor& a, const Tensor& b, unsigned dimension = 0);

// ---- graphs
// ----------------------------------------------------------------------------------------------------------

class ComputeSet {
 public:
  ComputeSet();
  explicit ComputeSet(unsigned id);
  unsigned getId() const;
};
class FieldRef {
 public:
  FieldRef operator[](std::size_t index) const;
};
class VertexRef {
 public:
  VertexRef();
  FieldRef operator[](StringRef field) const;
  unsigned getId() const;
};
class DataStream {
 public:
  DataStream();
  std::string handle() const;
  std::size_t numElements() const;
  Type elementType() const;
  unsigned replicationFactor() const;
  ReplicatedStreamMode replicatedMode() const;
};
class RemoteBuffer {
 public:
  RemoteBuffer();
  std::string handle() const;
  std::size_t numElements() const;
  std::size_t getRepeats() const;
  Type elementType() const;
};
class HostFunction {
 public:
  std::string handle() const;
};
class Function {
 public:
  Function();
  unsigned getId() const;
};
class FunctionBuffer {
 public:
  FunctionBuffer();
};
namespace layout {
enum class Vector { NotAVector, Span, ShortSpan, OnePtr, ScaledPtr32, ScaledPtr64, ScaledPtr128 };
enum class VectorList { NotAVector, OnePtr, ScaledPtr32, ScaledPtr64, ScaledPtr128, DeltaN, DeltaNElements };
}  // namespace layout
struct VertexPerfEstimate {
  VertexPerfEstimate();
  VertexPerfEstimate(std::uint64_t cycles, std::uint64_t flops = 0);
  std::uint64_t cycles, flops;
};
struct PerfEstimate : VertexPerfEstimate {};
class FieldData {
 public:
  std::size_t size() const;
  std::size_t getSizeAtIndex(std::size_t) const;
  layout::Vector getProfilerVectorLayout(std::size_t nesting) const;
  struct Element {
    std::size_t size() const;
  };
  Element operator[](std::size_t) const;
  template <class T>
  T getInitialValue(const Target&) const;
  template <class T>
  std::vector<T> getInitialValues(const Target&) const;
};
class VertexIntrospector {
 public:
  const Target& getTarget() const;
  FieldData getFieldInfo(const std::string&) const;
};
using PerfEstimateFunc = std::function<VertexPerfEstimate(const VertexIntrospector&, const Target&)>;
using CycleEstimateFunc = std::function<std::uint64_t(const VertexIntrospector&, const Target&)>;

class ConnectionDesc {
 public:
  ConnectionDesc(StringRef field, Tensor tensor);
  ConnectionDesc(StringRef field, ArrayRef<Tensor> tensors);
  ConnectionDesc(StringRef field, const std::vector<Tensor>& tensors);
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  ConnectionDesc(StringRef field, T constant);
};

namespace program {
class Program;
}
class HostFunctionHandle;
class Graph {
 public:
  using TileToTensorMapping = std::vector<std::vector<Interval>>;
  explicit Graph(const Target& target, replication_factor = replication_factor(1));
  explicit Graph(const Device& device, replication_factor = replication_factor(1));
  Graph(Graph&&);
  Graph& operator=(Graph&&);
  ~Graph();

  const Target& getTarget() const;
  unsigned getReplicationFactor() const;
  Graph getTopLevelGraph();
  Graph createVirtualGraph(unsigned numTilesPerIPU);
  Graph createVirtualGraph(unsigned lowerTile, unsigned upperTile);
  Graph createVirtualGraph(const std::vector<unsigned>& perIpuTiles);
  Tensor addReplicationIndexConstant(const DebugContext& = {});

  bool addCodelets(StringRef src, CodeletFileType = CodeletFileType::Auto, StringRef flags = "", StringRef target = "");
  bool addCodelets(ArrayRef<std::string> src, StringRef flags = "");
  void addCodelets(std::stringstream& stream, StringRef flags = "", CodeletFileType = CodeletFileType::CppSource,
                   StringRef target = "");
  bool hasCodelet(StringRef name) const;

  Tensor addVariable(const Type&, ArrayRef<std::size_t> shape, const DebugContext& = {});
  Tensor addVariable(const Type&, ArrayRef<std::size_t> shape, VariableMappingMethod, const DebugContext& = {});
  Tensor addVariable(const Type&, const Tensor& metadata, ArrayRef<std::size_t> shape, const DebugContext& = {});
  unsigned convertVirtualTileToPhysicalTile(unsigned tile) const;
  Tensor addLinearlyMappedVariable(const Type&, ArrayRef<std::size_t> shape, const DebugContext& = {});
  template <class T>
  Tensor addConstant(const Type&, ArrayRef<std::size_t> shape, ArrayRef<T> values, const DebugContext& = {"<const>"});
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Tensor addConstant(const Type&, ArrayRef<std::size_t> shape, T value, const DebugContext& = {"<const>"});
  template <class T>
  Tensor addConstant(const Type&, ArrayRef<std::size_t> shape, const T* values, const DebugContext& = {"<const>"});
  Tensor addConstant(const Type&, ArrayRef<std::size_t> shape, const void* values, const DebugContext& = {"<const>"});
  template <class T>
  Tensor addConstant(const Type&, const Tensor& metadata, ArrayRef<std::size_t> shape, T value,
                     const DebugContext& = {});
  Tensor addConstantHalf(const Type&, ArrayRef<std::size_t> shape, std::uint16_t value, const DebugContext& = {});
  Tensor addConstantHalf(const Type&, ArrayRef<std::size_t> shape, const std::uint16_t* values,
                         const DebugContext& = {});
  Tensor clone(const Type&, const Tensor& metadata, const Tensor&, const DebugContext& = {},
               TensorCloneMethod = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES);
  Tensor clone(const Type&, const Tensor&, const DebugContext& = {},
               TensorCloneMethod = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES);
  Tensor clone(const Tensor&, const DebugContext& = {},
               TensorCloneMethod = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES);

  void setTileMapping(VertexRef, unsigned tile);
  void setTileMapping(const Tensor&, unsigned tile);
  void setTileMapping(const Tensor&, const TileToTensorMapping&);
  TileToTensorMapping getTileMapping(const Tensor&, bool requireComplete = true, bool allowExternal = false) const;
  TileToTensorMapping getTileMapping(const Tensor&, bool* complete) const;
  TileToTensorMapping getVariableTileMapping(const Tensor&) const;

  ComputeSet addComputeSet(const DebugContext& = {});
  VertexRef addVertex(ComputeSet, StringRef vertexType);
  VertexRef addVertex(ComputeSet, StringRef vertexType, ArrayRef<ConnectionDesc> connections);
  VertexRef addExternalExchangeVertex(ComputeSet, StringRef vertexType, unsigned incoming, unsigned outgoing);
  void connect(FieldRef, const Tensor&);
  void connect(FieldRef, ArrayRef<Tensor>);
  void connect(FieldRef, int) = delete;
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  void setInitialValue(FieldRef, T value);
  template <class T>
  void setInitialValue(FieldRef, ArrayRef<T> values);
  template <class T>
  void setInitialValue(FieldRef, const std::vector<T>& values);
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  void setInitialValue(const Tensor&, T value);
  template <class T>
  void setInitialValue(const Tensor&, ArrayRef<T> values);
  void setInitialValueHalf(FieldRef, std::uint16_t value);
  void setInitialValueHalf(const Tensor&, ArrayRef<std::uint16_t> values);
  void setFieldSize(FieldRef, std::size_t size);
  std::size_t getNumVertices() const;
  std::size_t getNumComputeSets() const;
  std::size_t getMaxVertexFieldValue(StringRef vertex, StringRef field) const;
  std::size_t getMaxFieldDim(StringRef vertex, StringRef field, unsigned dim) const;
  double getMaxFieldValue(StringRef, StringRef) const;
  void setPerfEstimate(const VertexRef&, const VertexPerfEstimate&);
  void setPerfEstimate(const VertexRef&, std::uint64_t cycles, std::uint64_t flops = 0);
  VertexPerfEstimate getPerfEstimate(const VertexRef&) const;
  void registerPerfEstimator(StringRef vertex, PerfEstimateFunc);

  DataStream addHostToDeviceFIFO(StringRef handle, const Type&, std::size_t n,
                                 ReplicatedStreamMode = ReplicatedStreamMode::REPLICATE, const OptionFlags& = {});
  DataStream addDeviceToHostFIFO(StringRef handle, const Type&, std::size_t n, const OptionFlags& = {});
  RemoteBuffer addRemoteBuffer(StringRef handle, const Type&, std::size_t n, std::size_t repeats = 1,
                               bool rearrangeOnHost = false, bool optimiseMemory = false);
  HostFunction addHostFunction(StringRef handle, ArrayRef<Tensor> in, ArrayRef<Tensor> out);
  void createHostWrite(StringRef handle, const Tensor&, bool rearrangeOnHost = false, bool isDefault = false);
  void createHostRead(StringRef handle, const Tensor&, bool rearrangeOnHost = false, bool isDefault = false);
  Function addFunction(const program::Program&);
  FunctionBuffer addFunctionBuffer(const Function&, FunctionBufferMappingType);

  std::vector<std::vector<Interval>> getSortedContiguousRegions(const Tensor&, ArrayRef<Interval> regions,
                                                                bool removeAliasedIntervals = false,
                                                                std::vector<std::size_t>* aliases = nullptr) const;
  void reorderToSimplify(Tensor* t, ArrayRef<Tensor*> ts, bool requireSimplestOrder = true) const;
  Tensor findUnbroadcastTensor(const Tensor&) const;
  Tensor cloneN(const Tensor&, std::size_t n, const DebugContext& = {},
                TensorCloneMethod = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES);
  bool isConstant(VertexRef) const;
  void outputVertexGraph(std::ostream&, ArrayRef<program::Program> = {}) const;
  void outputComputeGraph(std::ostream&, ArrayRef<program::Program> = {}) const;
  void serialize(std::ostream&) const;
  void trace(const program::Program&) const;
};

// ---- programs
// --------------------------------------------------------------------------------------------------------

struct PrintTensorFmt {
  enum class FloatFormat { Auto, Fixed, Scientific, None };
  PrintTensorFmt(unsigned summariseThreshold, unsigned edgeItems, unsigned maxLineWidth, unsigned digits,
                 FloatFormat floatFormat, char separator, char openBracket, char closeBracket);
};

namespace program {

class Program {
 public:
  Program();
  Program(const Program&);
  Program(Program&&);
  Program& operator=(const Program&);
  Program& operator=(Program&&);
  ~Program();
  bool isEmpty() const;
};
class Sequence : public Program {
 public:
  Sequence(const DebugContext& = {});
  Sequence(std::initializer_list<Program>, const DebugContext& = {});
  void add(const Program&);
  void add_front(const Program&);
};
class Execute : public Program {
 public:
  explicit Execute(ComputeSet, const DebugContext& = {});
  Execute(ComputeSet, Tensor predicate, const DebugContext& = {});
};
class Copy : public Program {
 public:
  Copy(Tensor src, Tensor dst, bool dontOutline = false, const DebugContext& = {});
  Copy(const DataStream& stream, Tensor dst, bool optimiseMemory = false, const DebugContext& = {});
  Copy(Tensor src, const DataStream& stream, bool optimiseMemory = false, const DebugContext& = {});
  Copy(const RemoteBuffer&, Tensor dst, const DebugContext& = {});
  Copy(const RemoteBuffer&, Tensor dst, Tensor offset, const DebugContext& = {});
  Copy(Tensor src, const RemoteBuffer&, const DebugContext& = {});
  Copy(Tensor src, const RemoteBuffer&, Tensor offset, const DebugContext& = {});
  Copy(const FunctionBuffer&, const Function&, const DebugContext& = {});
  Copy(const Function&, const FunctionBuffer&, const DebugContext& = {});
};
class CrossReplicaCopy : public Program {
 public:
  CrossReplicaCopy(Tensor src, Tensor dst, std::map<unsigned, unsigned> replicaMap, const DebugContext& = {});
};
class Repeat : public Program {
 public:
  Repeat(unsigned count, const Program& body, const DebugContext& = {});
};
class RepeatWhileTrue : public Program {
 public:
  RepeatWhileTrue(const Program& condition, Tensor predicate, const Program& body, const DebugContext& = {});
};
class RepeatWhileFalse : public Program {
 public:
  RepeatWhileFalse(const Program& condition, Tensor predicate, const Program& body, const DebugContext& = {});
};
class If : public Program {
 public:
  If(Tensor predicate, const Program& then, const Program& otherwise, const DebugContext& = {});
};
class Switch : public Program {
 public:
  using CaseReturn = std::pair<int, Program>;
  Switch(Tensor control, const std::vector<std::pair<int, Program>>& cases, const DebugContext& = {});
  Switch(Tensor control, const std::vector<std::pair<int, Program>>& cases, const Program& fallback,
         const DebugContext& = {});
  static Switch switchWithBoundsChecking(Tensor, const std::vector<std::pair<int, Program>>&, const DebugContext& = {});
  static Switch switchWithUnreachableDefault(Tensor, const DebugContext& = {});
  Switch& add(int, const Program&);
};
class Call : public Program {
 public:
  explicit Call(Function, const DebugContext& = {});
  Call(HostFunction, ArrayRef<Tensor> in, ArrayRef<Tensor> out, const DebugContext& = {});
};
class WriteUndef : public Program {
 public:
  explicit WriteUndef(Tensor, const DebugContext& = {});
};
class AssumeEqualAcrossReplicas : public Program {
 public:
  explicit AssumeEqualAcrossReplicas(Tensor, const DebugContext& = {});
};
class Sync : public Program {
 public:
  explicit Sync(SyncType, const DebugContext& = {});
};
class PrintTensor : public Program {
 public:
  explicit PrintTensor(Tensor, const DebugContext& = {});
  PrintTensor(StringRef title, Tensor, const PrintTensorFmt&, const DebugContext& = {});
  PrintTensor(StringRef title, Tensor, const DebugContext& = {});
};
class AbortOnCondition : public Program {
 public:
  explicit AbortOnCondition(Tensor condition, std::string message = "", const DebugContext& = {});
};
class Abort : public Program {
 public:
  explicit Abort(const DebugContext& = {});
  explicit Abort(std::string message, const DebugContext& = {});
};
class ErrorProgram : public Program {
 public:
  ErrorProgram(StringRef message, Tensor, const DebugContext& = {});
};
void dumpProgram(const Graph&, const Program&, std::ostream&);

}  // namespace program

Tensor createVariableMetadataTensor(Graph&, QuarterMetadata::Format, const Tensor& scale, program::Sequence&,
                                    const DebugContext& = {});
Tensor cycleCount(Graph&, program::Sequence&, unsigned tile, SyncType, const DebugContext& = {});
Tensor cycleStamp(Graph&, program::Sequence&, unsigned tile, SyncType, const DebugContext& = {});
void setFloatingPointBehaviour(Graph&, program::Sequence&, const DebugContext& = {});
void setStochasticRounding(Graph&, program::Sequence&, bool enable, const DebugContext& = {});
Tensor getAndModifyFloatingPointBehaviour(Graph&, program::Sequence&, const DebugContext& = {});
void setHwSeeds(Graph&, const Tensor& seeds, program::Sequence&, const DebugContext& = {});
Tensor getHwSeeds(Graph&, program::Sequence&, const DebugContext& = {});

// ---- engines
// ---------------------------------------------------------------------------------------------------------

using ProgressFunc = std::function<void(int, int)>;
class StreamCallback {
 public:
  enum class Result { Success, NotAvailable };
  virtual ~StreamCallback();
  virtual Result prefetch(void* data) = 0;
  virtual void fetch(void* data) = 0;
  virtual void complete() = 0;
  virtual void invalidatePrefetched();
};
using StreamCallbackBase = StreamCallback;
class LegacyStreamCallback : public StreamCallback {
 public:
  virtual Result prefetch(void*) override;
  virtual void complete() override;
};
class StreamCallbackHandle {
 public:
  StreamCallbackHandle(StreamCallback&&);
  template <class T, class = std::enable_if_t<std::is_base_of_v<StreamCallback, T>>>
  StreamCallbackHandle(std::unique_ptr<T>);
  template <class F, class = decltype(std::declval<F>()(static_cast<void*>(nullptr)))>
  StreamCallbackHandle(F&&) {}
};
class Executable {
 public:
  Executable();
  Executable(Executable&&);
  Executable& operator=(Executable&&);
  ~Executable();
  void serialize(std::ostream&) const;
  static Executable deserialize(std::istream&);
};
Executable compileGraph(const Graph&, ArrayRef<program::Program>, const OptionFlags& = {}, ProgressFunc = {},
                        const DebugContext& = {});
class Engine {
 public:
  struct TimerTimePoint {};
  Engine(const Graph&, ArrayRef<program::Program>, const OptionFlags& = {}, ProgressFunc = {},
         const DebugContext& = {});
  Engine(const Graph&, program::Program, const OptionFlags& = {}, ProgressFunc = {}, const DebugContext& = {});
  Engine(Executable, const OptionFlags& = {});
  Engine(Engine&&);
  ~Engine();
  void load(const Device&);
  void prepare(const Device&);
  void deploy();
  void run(unsigned program = 0, const std::string& name = "");
  void loadAndRun(const Device&, unsigned program = 0);
  void stop();
  template <class T>
  void readTensor(StringRef handle, T* begin, T* end);
  template <class T>
  void writeTensor(StringRef handle, const T* begin, const T* end);
  void readTensor(StringRef handle, void* begin, void* end);
  void writeTensor(StringRef handle, const void* begin, const void* end);
  void connectStream(StringRef handle, void* begin, void* end);
  void connectStream(StringRef handle, void* begin);
  void connectStream(const DataStream&, void* begin, void* end);
  void connectStreamToCallback(StringRef handle, StreamCallbackHandle);
  void connectStreamToCallback(StringRef handle, unsigned replica, StreamCallbackHandle);
  void copyFromRemoteBuffer(StringRef handle, void* w, int repeat, unsigned replica = 0);
  void copyToRemoteBuffer(void* w, std::string handle, int repeat, unsigned replica = 0);
  void disableExecutionProfiling();
  void enableExecutionProfiling();
  std::string getExecutionProfile();
  TimerTimePoint getTimeStamp();
  void setPrintStream(std::ostream&);
  void setPrintTensorStream(std::ostream&);
  void printProfileSummary(std::ostream&, const OptionFlags& = {});
  void serializeExecutable(std::ostream&) const;
};

}  // namespace poplar

// ---- other closed libraries
// --------------------------------------------------------------------------------------------

namespace gccs {
template <class A, class B>
std::common_type_t<A, B> ceildiv(A, B);
template <class A, class B>
std::common_type_t<A, B> ceildiv0(A, B);
template <class A, class B>
std::common_type_t<A, B> floordiv(A, B);
template <class A, class B>
std::common_type_t<A, B> alignNext(A, B);
template <class A, class B>
std::common_type_t<A, B> alignPrev(A, B);
template <class T>
T ceilLog2(T);
template <class T>
bool isPowerOf2(T);
template <class T>
T nthTriangular(T);
}  // namespace gccs

namespace popef {
namespace ProgramFlow {
using ProgramIndexType = std::int64_t;
}
enum class DataType { BOOL, S8, U8, S16, U16, S32, U32, S64, U64, F16, F32, F64 };
}  // namespace popef

namespace pvti {
class Metadata {};
class TraceChannel {
 public:
  explicit TraceChannel(const char* name);
};
class Tracepoint {
 public:
  Tracepoint(TraceChannel*, const std::string& label);
  Tracepoint(TraceChannel*, const char* label);
  Tracepoint(TraceChannel*, const char* label, std::size_t n, Metadata* = nullptr);
  Tracepoint(TraceChannel*, const std::string& label, Metadata*);
};
}  // namespace pvti

namespace gcl {
enum class CollectiveOperator { ADD, MEAN, MUL, MIN, MAX, LOGICAL_AND, LOGICAL_OR, SQUARE_ADD, LOCAL };
enum class CommGroupType { ALL, CONSECUTIVE, ORTHOGONAL };
class CommGroup {
 public:
  CommGroup();
  CommGroup(CommGroupType, unsigned size, unsigned stride = 1);
  CommGroupType type() const;
  unsigned replicaGroupSize() const;
};
poplar::Tensor allReduceCrossReplica(poplar::Graph&, const poplar::Tensor&, CollectiveOperator,
                                     poplar::program::Sequence&, const CommGroup&, const poplar::DebugContext& = {},
                                     const poplar::OptionFlags& = {});
poplar::Tensor allReduceCrossReplica(poplar::Graph&, const poplar::Tensor&, CollectiveOperator,
                                     poplar::program::Sequence&, const poplar::DebugContext& = {},
                                     const poplar::OptionFlags& = {});
void allReduceInPlaceCrossReplica(poplar::Graph&, poplar::Tensor&, CollectiveOperator, poplar::program::Sequence&,
                                  const CommGroup&, const poplar::DebugContext& = {}, const poplar::OptionFlags& = {});
void allReduceInPlaceCrossReplica(poplar::Graph&, poplar::Tensor&, CollectiveOperator, poplar::program::Sequence&,
                                  const poplar::DebugContext& = {}, const poplar::OptionFlags& = {});
poplar::Tensor allGatherCrossReplica(poplar::Graph&, const poplar::Tensor&, poplar::program::Sequence&,
                                     const CommGroup&, const poplar::DebugContext& = {},
                                     const poplar::OptionFlags& = {});
poplar::Tensor reduceScatterCrossReplica(poplar::Graph&, const poplar::Tensor&, CollectiveOperator,
                                         poplar::program::Sequence&, const CommGroup&, const poplar::DebugContext& = {},
                                         const poplar::OptionFlags& = {});
struct CollectiveBalancedHostRearrangement {};
class CollectiveBalancedReorder {};
unsigned getMinIoTiles(const poplar::Graph&);
std::vector<unsigned> perIPUTiles(const poplar::Graph&, unsigned offset, unsigned count, bool sorted = true,
                                  bool tilePairs = true);
}  // namespace gcl

// The functions that PopDist's reference names, and those that PopART and PaddlePaddle call.
namespace popdist {
struct popdist_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void registerDefaultBackend();
void initializeBackend();
bool isBackendInitialized();
void finalizeBackend();
constexpr const char* defaultCommunicatorId() { return ""; }
void run(poplar::Engine&, unsigned program, const std::string& name = "");
int getDeviceId(int ipus_per_replica = 0);
}  // namespace popdist

#define GCCS_FALLTHROUGH [[fallthrough]]
#define GCCS_UNREACHABLE() __builtin_unreachable()
