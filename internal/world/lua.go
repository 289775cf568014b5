package world

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"sync"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// Scripts are the product's own, run by an interpreter of Lua. Of what Redis gives them they have what they use: redis.call, redis.pcall, and
// struct.pack and struct.unpack of doubles.

// compiled are scripts by their texts: all servers share them.
var compiled sync.Map

func compile(text string) (*lua.FunctionProto, error) {
	known, ok := compiled.Load(text)
	if ok {
		return known.(*lua.FunctionProto), nil
	}
	tree, err := parse.Parse(strings.NewReader(text), "script")
	if err != nil {
		return nil, err
	}
	made, err := lua.Compile(tree, "script")
	if err != nil {
		return nil, err
	}
	compiled.Store(text, made)
	return made, nil
}

// interpreter runs the scripts of a server, one after the other.
type interpreter struct {
	*lua.LState
	tx *Tx // of the script that runs
}

func newInterpreter() *interpreter {
	l := &interpreter{LState: lua.NewState(lua.Options{RegistrySize: 1024, CallStackSize: 64})}
	l.SetGlobal("redis", l.SetFuncs(l.NewTable(), map[string]lua.LGFunction{"call": l.call, "pcall": l.pcall}))
	l.SetGlobal("struct", l.SetFuncs(l.NewTable(), map[string]lua.LGFunction{"pack": pack, "unpack": unpack}))
	return l
}

// eval runs a script. Its answer is nil, a string, an int64, a []any, or an error.
func (l *interpreter) eval(t *Tx, text string, keys, args []string) any {
	made, err := compile(text)
	if err != nil {
		return RedisError("ERR " + err.Error())
	}
	l.tx = t
	l.SetGlobal("KEYS", l.list(keys))
	l.SetGlobal("ARGV", l.list(args))
	l.Push(l.NewFunctionFromProto(made))
	err = l.PCall(0, 1, nil)
	if err != nil {
		refused, ok := err.(*lua.ApiError).Object.(*lua.LTable)
		if !ok {
			return RedisError("ERR " + err.Error())
		}
		return answerOf(refused)
	}
	is := l.Get(-1)
	l.Pop(1)
	return answerOf(is)
}

func (l *interpreter) list(of []string) *lua.LTable {
	all := l.CreateTable(len(of), 0)
	for _, text := range of {
		all.Append(lua.LString(text))
	}
	return all
}

// call is redis.call: an error ends the script.
func (l *interpreter) call(s *lua.LState) int {
	is := l.tx.Call(commandOf(s)...)
	if _, refused := is.(RedisError); refused {
		s.Error(l.valueOf(is), 0)
	}
	s.Push(l.valueOf(is))
	return 1
}

// pcall is redis.pcall: an error is a table.
func (l *interpreter) pcall(s *lua.LState) int {
	s.Push(l.valueOf(l.tx.Call(commandOf(s)...)))
	return 1
}

// commandOf is the command of a call, as Redis makes texts of what a script gives it.
func commandOf(s *lua.LState) (all []string) {
	for i := 1; i <= s.GetTop(); i++ {
		number, ok := s.Get(i).(lua.LNumber)
		switch n := float64(number); {
		case !ok:
			all = append(all, s.CheckString(i))
		case n == math.Trunc(n) && math.Abs(n) < 1<<63:
			all = append(all, strconv.FormatInt(int64(n), 10))
		default:
			all = append(all, strconv.FormatFloat(n, 'g', 17, 64))
		}
	}
	return all
}

// valueOf is an answer of a command as a script gets it.
func (l *interpreter) valueOf(is any) lua.LValue {
	named := func(name, text string) *lua.LTable {
		table := l.NewTable()
		table.RawSetString(name, lua.LString(text))
		return table
	}
	switch is := is.(type) {
	case string:
		return lua.LString(is)
	case int64:
		return lua.LNumber(is)
	case status:
		return named("ok", string(is))
	case RedisError:
		return named("err", string(is))
	case []any:
		all := l.CreateTable(len(is), 0)
		for _, each := range is {
			all.Append(l.valueOf(each))
		}
		return all
	}
	return lua.LFalse
}

// answerOf is what Redis answers for the value of a script.
func answerOf(v lua.LValue) any {
	switch v := v.(type) {
	case lua.LString:
		return string(v)
	case lua.LNumber:
		return int64(v)
	case *lua.LTable:
		if text, ok := v.RawGetString("err").(lua.LString); ok {
			return RedisError(text)
		}
		all := []any{}
		for i := 1; v.RawGetInt(i) != lua.LNil; i++ {
			all = append(all, answerOf(v.RawGetInt(i)))
		}
		return all
	}
	if v == lua.LTrue {
		return int64(1)
	}
	return nil
}

// pack is struct.pack of doubles.
func pack(s *lua.LState) int {
	var packed []byte
	for i := range len(s.CheckString(1)) - 1 { // of "<"
		packed = binary.LittleEndian.AppendUint64(packed, math.Float64bits(float64(s.CheckNumber(i+2))))
	}
	s.Push(lua.LString(packed))
	return 1
}

// unpack is struct.unpack of doubles.
func unpack(s *lua.LState) int {
	n, packed := len(s.CheckString(1))-1, s.CheckString(2)
	if len(packed) < 8*n {
		s.RaiseError("data string too short")
	}
	for i := range n {
		s.Push(lua.LNumber(math.Float64frombits(binary.LittleEndian.Uint64([]byte(packed[8*i:])))))
	}
	s.Push(lua.LNumber(8*n + 1))
	return n + 1
}
