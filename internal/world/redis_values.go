package world

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"listedge/internal/changefeed"
)

func ofString(t *Tx, name string, args []string) (is any, err error) {
	key := args[0]
	if name == "set" {
		return setString(t, key, args[1], args[2:])
	}
	from, to := 0, -1
	if name == "getrange" {
		var err error
		from, err = strconv.Atoi(args[1])
		if err == nil {
			to, err = strconv.Atoi(args[2])
		}
		if err != nil {
			return nil, notInteger
		}
	}
	text, err := valueOf[string](t, key)
	switch {
	case err != nil:
		return nil, err
	case name == "getrange":
		return substring(text, from, to), nil
	case t.item(key).value == nil:
		return nil, nil
	}
	return text, nil
}

// substring is the part of a text from one place to another, both of it. Places below 0 count from the end.
func substring(text string, from, to int) string {
	if from < 0 && to < 0 && from > to {
		return ""
	}
	place := func(n int) int {
		if n < 0 {
			n += len(text)
		}
		return max(0, n)
	}
	from, to = place(from), min(place(to), len(text)-1)
	if from > to {
		return ""
	}
	return text[from : to+1]
}

func setString(t *Tx, key, value string, options []string) (is any, err error) {
	to, only := item{value: value}, ""
	for len(options) > 0 {
		option := strings.ToLower(options[0])
		switch {
		case (option == "nx" || option == "xx") && only == "":
			only = option
		case (option == "px" || option == "ex") && to.expires == 0 && len(options) > 1:
			life, err := strconv.ParseInt(options[1], 10, 64)
			switch {
			case err != nil:
				return nil, notInteger
			case life <= 0:
				return nil, RedisError("ERR invalid expire time in 'set' command")
			case option == "ex":
				life *= 1000
			}
			to.expires = t.now().UnixMilli() + life
			options = options[1:]
		default:
			return nil, syntax
		}
		options = options[1:]
	}
	if present := t.item(key).value != nil; only == "nx" && present || only == "xx" && !present {
		return nil, nil
	}
	t.put(key, to)
	return done, nil
}

type (
	stream struct {
		entries []streamEntry
		last    changefeed.Position // of all that it ever had
		added   int64
	}
	streamEntry struct {
		at     changefeed.Position
		fields []string
	}
)

// idOf parses a stream's ID. One without a second number has that one.
func idOf(text string, second uint64) (at changefeed.Position, err error) {
	switch {
	case text == "-" && second == 0:
		return at, nil
	case text == "+" && second > 0:
		return changefeed.Position{Term: math.MaxUint64, N: math.MaxUint64}, nil
	case !strings.Contains(text, "-"):
		text += "-" + strconv.FormatUint(second, 10)
	}
	at, err = changefeed.ParsePosition(text)
	if err != nil {
		return at, badID
	}
	return at, nil
}

func ofStream(t *Tx, name string, args []string) (is any, err error) {
	if name == "xread" {
		return xread(t, args)
	}
	key := args[0]
	if name == "xinfo" {
		if strings.ToLower(key) != "stream" {
			return nil, syntax
		}
		key = args[1]
	}
	var id changefeed.Position
	switch name {
	case "xadd":
		if len(args)%2 != 0 {
			return nil, RedisError("ERR wrong number of arguments for 'xadd' command")
		}
		id, err = idOf(args[1], 0)
	case "xtrim":
		if strings.ToLower(args[1]) != "minid" {
			return nil, syntax
		}
		id, err = idOf(args[len(args)-1], 0)
	}
	if err != nil {
		return nil, err
	}
	if name == "xadd" && id == (changefeed.Position{}) {
		return nil, zeroID
	}
	of, err := valueOf[stream](t, key)
	if err != nil {
		return nil, err
	}
	present := t.item(key).value != nil
	switch {
	case name == "xlen":
		return int64(len(of.entries)), nil
	case name == "xrange":
		return xrange(&of, args[1:])
	case name == "xinfo" && !present:
		return nil, noKey
	case name == "xinfo":
		return xinfo(&of), nil
	case name == "xtrim":
		n := of.behind(id)
		if n > 0 && of.entries[n-1].at == id {
			n--
		}
		of.entries = of.entries[n:]
		if n > 0 {
			t.replace(key, of, 1)
		}
		return int64(n), nil
	case id.Compare(of.last) <= 0:
		return nil, notAboveID
	}
	of.entries = append(of.entries, streamEntry{id, slices.Clone(args[2:])})
	of.last = id
	of.added++
	t.replace(key, of, 1)
	return id.String(), nil
}

// behind returns how many entries are not behind a place.
func (s *stream) behind(after changefeed.Position) (n int) {
	n, found := slices.BinarySearchFunc(s.entries, after, func(e streamEntry, p changefeed.Position) int { return e.at.Compare(p) })
	if found {
		n++
	}
	return n
}

func (e *streamEntry) reply() []any {
	fields := []any{}
	for _, text := range e.fields {
		fields = append(fields, text)
	}
	return []any{e.at.String(), fields}
}

func xread(t *Tx, args []string) (is any, err error) {
	count, waits := 0, time.Duration(-1)
	for len(args) > 1 && strings.ToLower(args[0]) != "streams" {
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return nil, notInteger
		}
		switch strings.ToLower(args[0]) {
		case "count":
			count = n
		case "block":
			waits = time.Duration(n) * time.Millisecond
			if n == 0 {
				waits = math.MaxInt64
			}
		default:
			return nil, syntax
		}
		args = args[2:]
	}
	if len(args) < 3 || len(args)%2 == 0 {
		return nil, syntax
	}
	keys, ids := args[1:1+len(args)/2], args[1+len(args)/2:]
	found := []any{}
	for i, key := range keys {
		after, err := idOf(ids[i], 0)
		if err != nil {
			return nil, err
		}
		of, err := valueOf[stream](t, key)
		if err != nil {
			return nil, err
		}
		entries := []any{}
		for _, e := range of.entries[of.behind(after):] {
			if count > 0 && len(entries) == count {
				break
			}
			entries = append(entries, e.reply())
		}
		if len(entries) > 0 {
			found = append(found, []any{key, entries})
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	t.blocks = max(0, waits)
	return nil, nil
}

func xrange(of *stream, args []string) (is any, err error) {
	from, err := idOf(args[0], 0)
	if err != nil {
		return nil, err
	}
	to, err := idOf(args[1], math.MaxUint64)
	if err != nil {
		return nil, err
	}
	most := len(of.entries)
	if len(args) > 3 {
		most, _ = strconv.Atoi(args[3])
	}
	entries := []any{}
	for _, e := range of.entries {
		if e.at.Compare(from) >= 0 && e.at.Compare(to) <= 0 && len(entries) < most {
			entries = append(entries, e.reply())
		}
	}
	return entries, nil
}

func xinfo(of *stream) []any {
	is := []any{"length", int64(len(of.entries)), "last-generated-id", of.last.String(), "entries-added", of.added, "first-entry"}
	if len(of.entries) == 0 {
		return append(is, nil, "last-entry", nil)
	}
	return append(is, of.entries[0].reply(), "last-entry", of.entries[len(of.entries)-1].reply())
}

func ofHash(t *Tx, name string, args []string) (is any, err error) {
	if name == "hset" && len(args)%2 == 0 {
		return nil, RedisError("ERR wrong number of arguments for 'hset' command")
	}
	key := args[0]
	of, err := valueOf[hash](t, key)
	if err != nil {
		return nil, err
	}
	switch name {
	case "hget":
		value, ok := of[args[1]]
		if !ok {
			return nil, nil
		}
		return value, nil
	case "hmget", "hgetall":
		all := []any{}
		for _, field := range args[1:] {
			value, ok := of[field]
			if !ok {
				all = append(all, nil)
				continue
			}
			all = append(all, value)
		}
		if name == "hgetall" {
			for _, field := range slices.Sorted(maps.Keys(of)) {
				all = append(all, field, of[field])
			}
		}
		return all, nil
	}
	next, changed := maps.Clone(of), int64(0)
	if next == nil {
		next = hash{}
	}
	if name == "hset" {
		for pair := range slices.Chunk(args[1:], 2) {
			next[pair[0]] = pair[1]
		}
		changed = int64(len(next) - len(of))
		t.replace(key, next, len(next))
		return changed, nil
	}
	for _, field := range args[1:] {
		delete(next, field)
	}
	changed = int64(len(of) - len(next))
	if changed > 0 {
		t.replace(key, next, len(next))
	}
	return changed, nil
}

// sadd is there to damage keys: the product has no sets.
func sadd(t *Tx, args []string) (is any, err error) {
	of, err := valueOf[set](t, args[0])
	if err != nil {
		return nil, err
	}
	next := maps.Clone(of)
	if next == nil {
		next = set{}
	}
	for _, member := range args[1:] {
		next[member] = true
	}
	t.replace(args[0], next, len(next))
	return int64(len(next) - len(of)), nil
}

// ofSorted executes a command on a sorted set.
func ofSorted(t *Tx, name string, args []string) (is any, err error) {
	key := args[0]
	of, err := valueOf[sorted](t, key)
	if err != nil {
		return nil, err
	}
	var found []string // between two scores, in their order
	if name == "zcount" || strings.HasSuffix(name, "byscore") {
		least, most := bound(args[1], math.Inf(1)), bound(args[2], math.Inf(-1))
		for member, score := range of {
			if score >= least && score <= most {
				found = append(found, member)
			}
		}
		slices.SortFunc(found, func(a, b string) int { return cmp.Or(cmp.Compare(of[a], of[b]), strings.Compare(a, b)) })
	}
	next := maps.Clone(of)
	switch name {
	case "zcard":
		return int64(len(of)), nil
	case "zcount":
		return int64(len(found)), nil
	case "zrangebyscore":
		all := []any{}
		for _, member := range found {
			all = append(all, member)
			if len(args) > 3 { // WITHSCORES
				all = append(all, strconv.FormatFloat(of[member], 'f', -1, 64))
			}
		}
		return all, nil
	case "zremrangebyscore":
		maps.DeleteFunc(next, func(member string, _ float64) bool { return slices.Contains(found, member) })
	case "zrem":
		delete(next, args[1])
	case "zadd":
		score, err := strconv.ParseFloat(args[len(args)-2], 64)
		if err != nil {
			return nil, RedisError("ERR value is not a valid float")
		}
		if next == nil {
			next = sorted{}
		}
		member := args[len(args)-1]
		before, known := next[member]
		if !known || len(args) == 3 || score > before { // GT: only a greater one
			next[member] = score
		}
	}
	t.replace(key, next, len(next))
	return int64(max(len(next), len(of)) - min(len(next), len(of))), nil
}

// bound reads one of two scores. One that is open is less than it towards the other.
func bound(text string, other float64) float64 {
	score, open := strings.CutPrefix(text, "(")
	n, _ := strconv.ParseFloat(score, 64)
	if open {
		return math.Nextafter(n, other)
	}
	return n
}
