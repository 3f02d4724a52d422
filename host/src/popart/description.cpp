#include "description.h"

#include <algorithm>
#include <limits>
#include <locale>
#include <sstream>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "host/src/cpu/shape_table.h"

namespace sparsesnn::popart_op {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("sparsesnn op: " + what); }

constexpr std::uint64_t most = std::numeric_limits<std::int32_t>::max();
constexpr double infinite = std::numeric_limits<double>::infinity(), largest = std::numeric_limits<float>::max();

// One record, word by word.
class Record {
 public:
  Record(const std::string& line, unsigned number) : words_(line), number_(number) {
    if (!(words_ >> name)) refuse("description, line " + std::to_string(number) + ": is empty");
  }

  std::string name;

  std::string word(const char* what) {
    std::string found;
    if (!(words_ >> found)) refuse(where() + "ends before " + what);
    return found;
  }
  std::uint64_t whole(const char* what, std::uint64_t low, std::uint64_t high) {
    return in_range<std::uint64_t>(what, word(what), low, high);
  }
  unsigned number(const char* what, std::uint64_t low, std::uint64_t high) {
    return static_cast<unsigned>(whole(what, low, high));
  }
  float real(const char* what, double low, double high) {
    const std::string text = word(what);
    if (text == "-inf" && low == -infinite) return -std::numeric_limits<float>::infinity();
    return static_cast<float>(in_range<double>(what, text, low, high));
  }
  std::string rest() {
    std::string found;
    std::getline(words_ >> std::ws, found);
    return found;
  }
  void end() {
    std::string more;
    if (words_ >> more) refuse(where() + "has '" + more + "' after its last number");
  }

 private:
  std::string where() const { return "description, line " + std::to_string(number_) + ", " + name + ": "; }
  // Independent of the process's locale.
  template <class T>
  T in_range(const char* what, const std::string& text, T low, T high) const {
    std::istringstream in(text);
    in.imbue(std::locale::classic());
    T value{};
    if (text[0] == '-' && std::is_unsigned_v<T>)
      in.setstate(std::ios::failbit);
    else
      in >> value;
    if (!in || !in.eof() || !(value >= low && value <= high)) {
      std::ostringstream allowed;
      allowed << low << " to " << high;
      refuse(where() + what + " is " + text + "; allowed: " + allowed.str());
    }
    return value;
  }

  std::istringstream words_;
  unsigned number_;
};

// Names of entries, separated by commas; none: "-".
std::vector<std::string> names(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream in(text);
  for (std::string name; text != "-" && std::getline(in, name, ',');) found.push_back(name);
  return found;
}

unsigned row_of(const ipu::Population& p, const std::string& name) {
  const auto& all = p.shape->entries;
  return static_cast<unsigned>(std::find(all.begin(), all.end(), name) - all.begin());
}

// The rows of an entry: u is also r of a row without f, if the shape has r.
std::vector<unsigned> rows_of(const ipu::Population& p, const NeuronStructure& model, const std::string& name) {
  std::vector<unsigned> rows{row_of(p, name)};
  const std::string r = "r" + name.substr(1), f = "f" + name.substr(1);
  if (name[0] == 'u' && holds(p.shape->entries, r) && !holds(model.entries, f)) rows.push_back(row_of(p, r));
  return rows;
}

// How the gradient of an entry adds up; r and f of a row have theirs in u = r + f.
ipu::EntryTerm term(const std::string& name, bool in_order) {
  if (name == "threshold") return {ipu::by_threshold, ipu::value_one, 0};
  const char kind = name[0];
  const auto row = static_cast<unsigned>(name[1] - '0');
  if (kind == 'r' || kind == 'f') return {row, ipu::value_zero, 0};
  if (kind == 'B') return {row, ipu::value_current, 0};
  if (kind == 'u' || kind == 'c') return {row, ipu::value_one, kind == 'u'};
  const auto column = static_cast<unsigned>(name[2] - '0');
  return {row, (in_order && column > row ? ipu::value_after : ipu::value_before) + column, kind == 'R'};
}

ipu::Population population(Record& r, std::size_t index, NeuronStructure& model, std::vector<std::string>& trained) {
  ipu::Population p{};
  p.name = "population" + std::to_string(index);
  model.n_states = static_cast<int>(r.number("states", 1, ipu::max_states));
  model.fires = p.fires = r.number("fires", 0, 1);
  model.in_order = r.number("sequential", 0, 1);
  model.entries = names(r.word("entries"));
  model.ones = names(r.word("ones"));
  trained = names(r.word("trained"));
  NeuronStructure without_threshold = model;
  if (p.fires && !model.entries.empty()) {
    if (model.entries.back() != "threshold") refuse(p.name + ": the last entry is not the threshold");
    without_threshold.entries.pop_back();
  }
  p.shape = &ipu::shape_for(without_threshold);
  p.kept = r.number("kept", 0, (2u << ipu::max_states) - 1);
  p.n = r.number("n", 1, 65536);
  p.capacity = p.fires ? r.number("capacity", 1, p.n) : r.number("capacity", 0, 0);
  p.seed = r.whole("seed", 0, std::numeric_limits<std::uint64_t>::max());
  p.surrogate = r.number("surrogate", 0, 6);
  p.slope = r.real("slope", std::numeric_limits<float>::min(), largest);
  p.detach_reset = r.number("detach_reset", 0, 1);
  p.fixed = r.number("fixed", 0, 1);
  p.bias = r.number("bias", 0, 1);
  for (const std::string& name : trained) {
    if (!holds(model.entries, name) || !holds(p.shape->entries, name))
      refuse(p.name + ": trained has '" + name + "', which is none of its entries");
    p.given_rows.push_back(rows_of(p, model, name));
    p.terms.push_back(term(name, model.in_order));
  }
  p.entries.assign(std::size_t{p.entry_rows()} * p.n, 0.0f);
  const auto read = [&](const std::vector<unsigned>& rows, double low) {
    for (unsigned k = 0; k < p.n; ++k) {
      const float value = r.real("value", low, largest);
      for (const std::size_t row : rows) p.entries[row * p.n + k] = value;
    }
  };
  for (const std::string& name : model.entries) {
    if (holds(trained, name)) continue;
    if (holds(p.shape->entries, name)) {
      read(rows_of(p, model, name), -largest);
    } else {  // the shape has i itself
      for (unsigned k = 0; k < p.n; ++k) r.real("value", 1, 1);
    }
  }
  if (holds(p.shape->entries, "order"))
    std::fill_n(p.entries.begin() + std::ptrdiff_t{row_of(p, "order")} * p.n, p.n, static_cast<float>(model.in_order));
  if (p.fires) read({p.n_entries()}, -infinite);  // θ_grad
  return p;
}

}  // namespace

Description::Description(const std::string& given) : text(given) {
  std::vector<ipu::Population>& populations = network.populations;
  std::vector<ipu::Connection>& connections = network.connections;
  std::istringstream lines(text);
  unsigned number = 0;
  for (std::string line; std::getline(lines, line);) {
    Record r(line, ++number);
    const std::size_t last = populations.empty() ? 0 : populations.size() - 1;
    if (r.name == "pass") {
      saves = r.number("saves", 0, 1), input_gradient = r.number("input_gradient", 0, 1);
    } else if (r.name == "codelets") {
      codelets = r.rest();
    } else if (r.name == "input" && populations.empty()) {
      ipu::Population p{};
      p.name = "input", p.n = r.number("n", 1, 65536), p.capacity = r.number("capacity", 1, p.n);
      populations.push_back(p);
      structures.push_back({});
      trained.push_back({});
    } else if (r.name == "population" && !populations.empty()) {
      if (!spikes(last)) refuse(populations[last].name + ": only the last population may be a readout");
      structures.push_back({});
      trained.push_back({});
      populations.push_back(population(r, populations.size(), structures.back(), trained.back()));
    } else if (r.name == "connection") {
      connections.push_back({r.number("pre", 0, last), r.number("post", 1, last), r.number("delay", 0, 65535), {}});
    } else if (r.name == "shard") {
      populations[r.number("population", 1, last)].shards.push_back(
          {r.number("tile", 0, most), r.number("first", 0, most), r.number("n", 1, most)});
    } else if (r.name == "collector" && !populations.empty()) {
      populations[r.number("population", 0, last)].collectors.push_back(
          {r.number("tile", 0, most), r.number("first", 0, most), r.number("n", 1, most)});
    } else if (r.name == "reducer" && !connections.empty()) {
      connections[r.number("connection", 0, connections.size() - 1)].reducers.push_back(
          {r.number("tile", 0, most), r.number("first_shard", 0, most), r.number("n_shards", 1, most),
           r.number("first_sample", 0, most), r.number("n_samples", 1, most)});
    } else {
      refuse("description, line " + std::to_string(number) + ": record '" + r.name + "' is unknown or out of order");
    }
    r.end();
  }
  if (populations.size() < 2) refuse("description: has no population; give one at least");
  for (std::size_t k = 1; k < populations.size(); ++k) {
    bool reached = false;
    for (const ipu::Connection& c : connections) reached |= c.post == k;
    if (!reached) refuse("description: no connection reaches population " + std::to_string(k));
  }
  network.devices = 1;
  network.optimizer = ipu::Optimizer::none;
  network.decoding = populations.back().spikes() ? 4 : 1;  // unused: the loss is the owner's
  network.n_classes = populations.back().n;
}

ipu::ProgramSpec Description::spec(std::int64_t n_steps, std::int64_t n_samples, unsigned n_tiles) const {
  for (const std::int64_t n : {n_steps, n_samples})
    if (n < 1 || n > static_cast<std::int64_t>(most))
      refuse("lists have T=" + std::to_string(n_steps) + ", B=" + std::to_string(n_samples) + "; allowed: 1 to " +
             std::to_string(most));
  ipu::ProgramSpec s = network;
  s.tiles = n_tiles;
  s.n_steps = static_cast<unsigned>(n_steps);
  s.n_samples = static_cast<unsigned>(n_samples);
  s.check();
  return s;
}

std::int64_t Description::n_history(std::size_t population, std::int64_t n_steps, std::int64_t n_samples) const {
  std::int64_t width = 0;
  for (const ipu::Shard& s : network.populations[population].shards) width += (s.n + 1) / 2 * 2;
  return (1 + __builtin_popcount(network.populations[population].kept)) * n_steps * n_samples * width;
}

}  // namespace sparsesnn::popart_op
