#include "ring.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "patience.hpp"

namespace pccl {
namespace {

// A turn on one lane ends after this much, so that all lanes and both directions advance together.
constexpr std::size_t turn_bytes = std::size_t{1} << 20;

// The longest sleep; a limit on stalls is noticed within a fifth of a second of its end.
constexpr int sleep_ms = 200;

// Of far lanes that are to be looked at again: soon enough that little of a round trip is lost.
constexpr int look_ms = 5;

// Of each segment: one, and one more that may be sent when the first hangs.
constexpr std::uint8_t copies_max = 2;

}  // namespace

Ring::Ring(const Plan& plan, const Memory& memory, const std::vector<Channel>& next, const std::vector<Channel>& prev,
           Notifier wake)
    : plan_(plan),
      route_(plan),
      input_(memory.input),
      output_(memory.output),
      in_place_(memory.input == memory.output),
      kernels_(kernels()),
      // As many slots as this strand has segments of a chunk, and one for each lane. There are as many segments on
      // their way around the ring as there are slots in it, so even with every slot taken everywhere one peer can send:
      // no deadlock. One more for each lane to the next peer, whose second copy may be of what has arrived there
      // already. With a codec one more for each segment of the result, which is held to the end.
      slots_(route_.segment_bytes(),
             route_.share(0) + prev.size() + next.size() + (plan.codec.id != 0 ? route_.all_shares() : 0)),
      wake_(std::move(wake)) {
    report_.broken_next.reserve(next.size());
    report_.broken_prev.reserve(prev.size());
    report_.rests.reserve(prev.size());
    if (plan.codec.id != 0) coding_.emplace(plan.codec, plan.type, plan.op, memory.feedback);
    for (const Channel& channel : next) {
        order_.push_back(static_cast<std::uint32_t>(senders_.size()));
        senders_.push_back({Lane(channel)});
        choosy_ |= senders_.back().lane.far() && next.size() > 1;
    }
    for (const Channel& channel : prev) receivers_.push_back({Lane(channel)});
}

// ── the attempt ──────────────────────────────────────────────────────────────────────────────────────────────────────

Report Ring::run() {
    try {
        work();
    } catch (const std::bad_alloc&) {
        fail("out of memory");  // the report still says which lanes stand in the middle of a segment
    }
    return report();
}

void Ring::work() {
    begin();
    Patience patience(plan_.stall_s, plan_.bytes_min_s, unsent_ + unreceived_);
    auto turn_at = Clock::now();
    while (cause_.empty() && (!finished() || lingers(turn_at))) {
        if (stop_.load(std::memory_order_acquire)) {
            fail("aborted");
            break;
        }
        const std::uint64_t useful = useful_bytes_, open = unsent_ + unreceived_;
        bool moved = false;
        look_at_lanes(turn_at);
        for (const std::uint32_t lane : order_) moved |= pump(senders_[lane]);
        for (Receiver& receiver : receivers_) moved |= pump(receiver);
        if (moved) {
            moved_.store(sent_bytes_ + received_bytes_, std::memory_order_relaxed);
        } else if (cause_.empty()) {
            wait();
        }
        const auto now = Clock::now();
        patience.pass(std::chrono::duration<double>(now - turn_at).count(), useful_bytes_ - useful,
                      open - unsent_ - unreceived_);
        turn_at = now;
        if (!patience.over()) continue;
        if (finished()) break;
        fail(patience.cause());
    }
}

void Ring::begin() {
    for (std::uint32_t hop = 0; hop < route_.hops(); ++hop) {
        const std::uint32_t segments = route_.share(route_.chunk_received(hop));
        received_.emplace_back(segments);
        unreceived_ += segments;
        unsent_ += route_.share(route_.chunk_sent(hop));
    }
    if (route_.hops() > 0) own_segments_ = route_.share(route_.chunk_sent(0));
    if (plan_.kind == Kind::reduce_scatter) return;  // every peer ends with another part
    for (std::uint32_t chunk = 0; chunk < route_.chunks(); ++chunk) {
        first_segments_.push_back(checks_.size());
        checks_.resize(checks_.size() + route_.segments(chunk));
    }
}

void Ring::note_check(std::uint32_t chunk, std::uint32_t index, std::uint64_t check) {
    if (!first_segments_.empty()) checks_[first_segments_[chunk] + index] = check;
}

void Ring::pass_on(const Outgoing& segment) {
    if (segment.hop < route_.hops()) {
        ready_.push_back(segment);
    } else if (segment.slot >= 0) {
        slots_.give(segment.slot);
    }
}

bool Ring::anything_ready() const {
    return !ready_.empty() || own_sent_ < own_segments_;
}

// What was just reduced goes first: it is still in the cache, and it frees a slot that is. Our own chunk can wait.
Ring::Outgoing Ring::next_ready() {
    if (!ready_.empty()) {
        const Outgoing segment = ready_.front();
        ready_.pop_front();
        return segment;
    }
    const std::uint32_t index = route_.index_of(own_sent_++);
    const Place place = route_.locate(route_.chunk_sent(0), index);
    // Where nothing is reduced, what we bring is a part of our own result too.
    if (route_.reducing_hops() == 0 && !in_place_) {
        std::memcpy(output_ + place.output, input_ + place.input, place.bytes);
    }
    return {0, index, static_cast<std::uint32_t>(place.bytes), -1, input_ + place.input, 0, false};
}

void Ring::fail(std::string cause) {
    if (cause_.empty()) cause_ = std::move(cause);
}

// ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────────

bool Ring::pump(Sender& sender) {
    std::size_t turn = 0;
    while (turn < turn_bytes && (sender.busy || begin(sender))) {
        iovec parts[2] = {{&sender.header, sizeof(Header)},
                          {const_cast<std::uint8_t*>(sender.segment.data), sender.segment.length}};
        iovec* first = parts;
        if (sender.sent >= sizeof(Header)) {
            const std::size_t payload_sent = sender.sent - sizeof(Header);
            first = parts + 1;
            first->iov_base = static_cast<std::uint8_t*>(first->iov_base) + payload_sent;
            first->iov_len -= payload_sent;
        } else {
            first->iov_base = static_cast<std::uint8_t*>(first->iov_base) + sender.sent;
            first->iov_len -= sender.sent;
        }
        std::size_t bytes = 0;
        const Moved moved = sender.lane.send(first, static_cast<int>(parts + 2 - first), bytes);
        if (moved == Moved::nothing_now) break;
        if (moved == Moved::broken) {
            if (!finished()) fail("to the next peer: " + sender.lane.cause());
            sender.flying.clear();
            break;
        }
        sender.sent += bytes;
        sent_bytes_ += bytes;
        (sender.segment.repeated ? repeated_bytes_ : useful_bytes_) += bytes;
        turn += bytes;
        if (sender.sent == sizeof(Header) + sender.segment.length) taken(sender);
    }
    return turn > 0;
}

// True when there is a segment for it, which it can send.
bool Ring::begin(Sender& sender) {
    if (!anything_ready()) return repeat(sender);
    if (sender.spared || !sender.lane.ready()) return false;
    load(sender, next_ready());
    return true;
}

void Ring::load(Sender& sender, const Outgoing& begun) {
    Outgoing& segment = sender.segment = begun;
    if (coding_ && segment.hop == 0) encode_own(sender);
    if (!segment.checked) segment.check = kernels_.check(segment.data, segment.length);
    // Finished here, or brought by us where nothing is reduced: what is sent is a part of our own result.
    if (segment.hop == route_.reducing_hops()) note_check(route_.chunk_sent(segment.hop), segment.index, segment.check);
    sender.header = {plan_.tag, plan_.attempt, segment.hop, segment.index, segment.length, 0, segment.check};
    sender.header.seal = seal_of(sender.header);
    sender.sent = 0;
    sender.busy = true;
}

// The kernel has all of it.
void Ring::taken(Sender& sender) {
    const Outgoing& segment = sender.segment;
    sender.busy = false;
    if (sender.flow.unacked_bytes <= 0) sender.arrived_at = Clock::now();
    if (segment.repeated) {
        if (segment.slot >= 0) slots_.give(segment.slot);
        return;
    }
    --unsent_;
    if (plan_.repeat_every > 0 && ++taken_ % plan_.repeat_every == 0) {
        forced_.push_back(segment);
    } else if (choosy_ && sender.lane.far()) {
        sender.flying.push_back({segment, sender.lane.taken()});
    } else if (segment.slot >= 0) {
        slots_.give(segment.slot);
    }
}

void Ring::encode_own(Sender& sender) {
    const Place place = route_.locate(route_.chunk_sent(0), sender.segment.index);
    sender.coded.resize(route_.segment_bytes());
    coding_->encode(sender.coded.data(), own_share(place), coding_->stream(plan_.tag, plan_.attempt, 0));
    sender.segment.data = sender.coded.data();
    sender.segment.length = static_cast<std::uint32_t>(place.wire);
}

// ── receiving ────────────────────────────────────────────────────────────────────────────────────────────────────────

bool Ring::pump(Receiver& receiver) {
    std::size_t turn = 0;
    while (turn < turn_bytes && cause_.empty() && reads_on(receiver)) {
        if (receiver.reading == Reading::slot && !find_room(receiver)) break;
        std::size_t bytes = 0;
        Moved moved = Moved::nothing_now;
        std::uint8_t discarded[16384];
        const std::size_t missing =
            (receiver.reading == Reading::header ? sizeof(Header) : receiver.header.length) - receiver.got;
        switch (receiver.reading) {
            case Reading::header:
                moved = receiver.lane.receive(reinterpret_cast<std::uint8_t*>(&receiver.header) + receiver.got, missing,
                                              bytes);
                break;
            case Reading::payload:
                moved = receiver.lane.receive(receiver.to + receiver.got, missing, bytes);
                break;
            default:
                moved = receiver.lane.receive(discarded, std::min(missing, sizeof discarded), bytes);
        }
        if (moved == Moved::nothing_now) break;
        if (moved == Moved::broken) {
            if (unreceived_ > 0) fail("from the previous peer: " + receiver.lane.cause());
            break;
        }
        receiver.got += bytes;
        received_bytes_ += bytes;
        if (receiver.reading == Reading::payload && !receiver.second) useful_bytes_ += bytes;
        turn += bytes;
        if (bytes < missing) continue;
        if (receiver.reading == Reading::header) {
            if (!(unreceived_ > 0 ? read_header(receiver) : pass_over(receiver))) break;
        } else {
            if (receiver.reading == Reading::payload && !take_segment(receiver)) break;
            receiver.reading = Reading::header;
            receiver.got = 0;
        }
    }
    return turn > 0;
}

bool Ring::reads_on(const Receiver& receiver) {
    return receiver.reading != Reading::other && receiver.lane.cause().empty();
}

// A whole header is there: decide where its payload goes. False if nothing sensible can follow.
bool Ring::read_header(Receiver& receiver) {
    const Header& header = receiver.header;
    if (header.seal != seal_of(header)) {
        fail("a header from the previous peer arrived damaged");
    } else if (header.length > segment_bytes_max || header.attempt > plan_.attempt || header.length == 0) {
        fail("a segment from the previous peer makes no sense");
    } else if (header.attempt < plan_.attempt) {
        receiver.reading = Reading::stale;  // the rest of an attempt that was aborted
        receiver.got = 0;
        return true;
    } else if (accept_header(receiver)) {
        receiver.got = 0;
        return true;
    }
    receiver.refused = true;
    return false;
}

// The same once all has come, and only copies of it are left, whose sender must not wait for room until it gives up. So
// they are dropped; anything else is for the next user of the lane.
bool Ring::pass_over(Receiver& receiver) {
    const Header& header = receiver.header;
    const bool sound = header.seal == seal_of(header) && header.length > 0 && header.length <= segment_bytes_max;
    if (!sound || header.attempt > plan_.attempt) {
        receiver.reading = Reading::other;
        return false;
    }
    receiver.reading = Reading::stale;
    receiver.got = 0;
    return true;
}

bool Ring::accept_header(Receiver& receiver) {
    const Header& header = receiver.header;
    const bool known = header.tag == plan_.tag && header.hop < route_.hops() &&
                       header.index < route_.segments(route_.chunk_received(header.hop)) && route_.ours(header.index) &&
                       copies(header.hop, header.index).begun < copies_max;
    if (!known || header.length != route_.locate(route_.chunk_received(header.hop), header.index).wire) {
        fail("a segment from the previous peer has no place in this attempt");
        return false;
    }
    Copies& there = copies(header.hop, header.index);
    receiver.second = ++there.begun > 1;
    if (!receiver.second) useful_bytes_ += sizeof(Header);
    if (there.whole) {
        receiver.reading = Reading::stale;
        return true;
    }
    if (coding_ || route_.treatment(header.hop) != Treatment::copy) {
        receiver.reading = Reading::slot;
        return true;
    }
    const Place place = route_.locate(route_.chunk_received(header.hop), header.index);
    // Two copies may be written here at once: the check is of what lies here when one of them is whole, and after that
    // the other is not written any more.
    if (!receiver.second) save(place);
    receiver.to = output_ + place.output;
    receiver.slot = -1;
    receiver.reading = Reading::payload;
    return true;
}

bool Ring::find_room(Receiver& receiver) {
    receiver.slot = slots_.take();
    if (receiver.slot < 0 && free_a_slot()) receiver.slot = slots_.take();
    if (receiver.slot < 0) return false;
    receiver.to = slots_.data(receiver.slot);
    receiver.reading = Reading::payload;
    return true;
}

// A whole segment is there: check it, reduce it, pass it on. False if it is damaged.
bool Ring::take_segment(Receiver& receiver) {
    const Header& header = receiver.header;
    const std::uint64_t check = kernels_.check(receiver.to, header.length);
    if (check != header.check) {
        fail("a segment from the previous peer arrived damaged");
        return false;
    }
    copies(header.hop, header.index).whole = true;
    discard_others(receiver);
    const std::uint32_t chunk = route_.chunk_received(header.hop);
    if (route_.treatment(header.hop) == Treatment::copy) note_check(chunk, header.index, check);
    const Place place = route_.locate(chunk, header.index);
    Outgoing segment{header.hop + 1, header.index, header.length, -1, receiver.to, check, true};
    coding_ ? take_codes(receiver, place, segment) : take_values(receiver, place, segment);
    --unreceived_;
    pass_on(segment);
    return true;
}

// What is on its way in on another lane is the same segment: it has come.
void Ring::discard_others(const Receiver& receiver) {
    if (copies(receiver.header.hop, receiver.header.index).begun < copies_max) return;
    for (Receiver& other : receivers_) {
        const bool begun = other.reading == Reading::slot || other.reading == Reading::payload;
        const bool same = other.header.hop == receiver.header.hop && other.header.index == receiver.header.index;
        if (&other == &receiver || !begun || !same) continue;
        if (other.reading == Reading::payload && other.slot >= 0) slots_.give(other.slot);
        other.reading = Reading::stale;
    }
}

void Ring::take_values(const Receiver& receiver, const Place& place, Outgoing& segment) {
    const Combine combine = kernels_.combine[static_cast<std::size_t>(plan_.type)][static_cast<std::size_t>(plan_.op)];
    switch (route_.treatment(receiver.header.hop)) {
        case Treatment::reduce:
            combine(receiver.to, receiver.to, input_ + place.input, place.elements);
            segment.slot = receiver.slot;
            segment.checked = false;
            break;
        case Treatment::finish:
            save(place);
            segment.data = output_ + place.output;
            combine(output_ + place.output, receiver.to, input_ + place.input, place.elements);
            if (plan_.op == ReduceOp::avg) {
                const Divide divide = kernels_.divide[static_cast<std::size_t>(plan_.type)];
                divide(output_ + place.output, place.elements, plan_.size);
            }
            slots_.give(receiver.slot);
            segment.checked = false;
            break;
        case Treatment::copy:
            break;
    }
}

// Codes stay in their slot in every hop: what is sent on is what came, or has the same length and takes its place.
// Those of the result stay there after they were sent, too.
void Ring::take_codes(const Receiver& receiver, const Place& place, Outgoing& segment) {
    const std::uint64_t stream = coding_->stream(plan_.tag, plan_.attempt, segment.hop);
    const Treatment treatment = route_.treatment(receiver.header.hop);
    segment.checked = treatment == Treatment::copy;
    if (treatment == Treatment::reduce) {
        coding_->fold(receiver.to, own_share(place), stream);
        segment.slot = receiver.slot;
        return;
    }
    if (treatment == Treatment::finish) coding_->finish(receiver.to, own_share(place), stream, plan_.size);
    held_.push_back({receiver.to, place});
}

Stretch Ring::own_share(const Place& place) const {
    return {input_ + place.input, place.input / item_size(plan_.type), place.elements};
}

// ── the result, or the input once more ───────────────────────────────────────────────────────────────────────────────

void Ring::commit() {
    for (const Held& held : held_) coding_->decode(output_ + held.place.output, held.codes, held.place.elements);
    held_.clear();
}

void Ring::save(const Place& place) {
    if (!in_place_) return;
    if (!saved_) saved_ = std::make_unique<Arena>(route_.share_bytes());
    kernels_.set_aside(saved_->data() + saved_bytes_, output_ + place.output, place.bytes);
    overwritten_.push_back({place, saved_bytes_});
    saved_bytes_ += place.bytes;
}

void Ring::restore() {
    for (const auto& [place, at] : overwritten_) {
        std::memcpy(output_ + place.output, saved_->data() + at, place.bytes);
    }
    overwritten_.clear();
    held_.clear();
}

// ── waiting and the end ──────────────────────────────────────────────────────────────────────────────────────────────

void Ring::wait() {
    watched_.assign(1, {wake_.fd(), POLLIN, 0});
    bool looks = false;  // something may change of which no descriptor tells
    for (const Sender& sender : senders_) {
        if (!sender.lane.cause().empty()) continue;  // it is ready to fail again, at any time
        const bool begins = anything_ready() ? !sender.spared : !forced_.empty();
        if (sender.busy || begins) watched_.push_back({sender.lane.fd(), POLLOUT, 0});
        looks |= (sender.spared && anything_ready()) || !sender.flying.empty();
    }
    for (const Receiver& receiver : receivers_) {
        if (receiver.reading == Reading::slot || !reads_on(receiver)) continue;
        if (receiver.lane.pending()) return;
        watched_.push_back({receiver.lane.fd(), POLLIN, 0});
    }
    ::poll(watched_.data(), static_cast<nfds_t>(watched_.size()), looks ? look_ms : sleep_ms);
}

// No other thread catches what it throws, so it takes no memory but for beginnings of headers: a lane of which
// there is none to be had for these is lost.
Report Ring::report() noexcept {
    report_.cause = std::move(cause_);
    for (std::uint32_t i = 0; i < senders_.size(); ++i) {
        const Sender& sender = senders_[i];
        if (begun(sender) || !sender.lane.cause().empty()) report_.broken_next.push_back(i);
    }
    for (std::uint32_t i = 0; i < receivers_.size(); ++i) {
        try {
            if (broken(receivers_[i])) {
                report_.broken_prev.push_back(i);
            } else if (Rest rest = rest_of(i); rest.skip > 0 || !rest.head.empty()) {
                report_.rests.push_back(std::move(rest));
            }
        } catch (const std::bad_alloc&) {
            report_.broken_prev.push_back(i);
        }
    }
    report_.sent_bytes = sent_bytes_;
    report_.received_bytes = received_bytes_;
    report_.repeated_bytes = repeated_bytes_;
    report_.checks = std::move(checks_);
    return std::move(report_);
}

// In the middle of a segment, whose rest no other could understand.
bool Ring::broken(const Receiver& receiver) {
    const bool inside = receiver.reading == Reading::slot || receiver.reading == Reading::payload;
    return inside || receiver.refused || !receiver.lane.cause().empty();
}

Rest Ring::rest_of(std::uint32_t lane) const {
    const Receiver& receiver = receivers_[lane];
    if (receiver.reading == Reading::stale) return {lane, receiver.header.length - receiver.got, {}};
    if (receiver.got == 0) return {lane, receiver.lane.to_skip(), receiver.lane.head()};
    return {lane, 0, {reinterpret_cast<const char*>(&receiver.header), receiver.got}};
}

}  // namespace pccl
