package world

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// sentAhead is how many answers may wait for a client that still sends: a pipe in memory has no room.
const sentAhead = 1 << 12

// ServeConn answers a client that speaks Redis' protocol (RESP2) until the connection ends.
func (s *Redis) ServeConn(conn net.Conn) {
	ctx, stop := context.WithCancel(context.Background())
	answers, in := make(chan []byte, sentAhead), bufio.NewReader(conn)
	go func() {
		defer conn.Close()
		for answer := range answers {
			if _, err := conn.Write(answer); err != nil {
				stop()
			}
		}
	}()
	defer close(answers)
	for ctx.Err() == nil {
		args, err := readCommand(in)
		if err != nil {
			break
		}
		c := &RedisCall{Commands: [][]string{args}, Replies: []any{RedisError("ERR unknown command")}}
		if _, known := least[strings.ToLower(args[0])]; known { // HELLO is not: the client goes on without it
			c.Replies = nil
			if s.carry(ctx, c) != nil {
				break
			}
		}
		answers <- appendAnswer(nil, c.Replies[0])
	}
	stop()
}

var errRESP = errors.New("no command in RESP")

// readCommand reads an array of texts.
func readCommand(in *bufio.Reader) (args []string, err error) {
	n, err := readLength(in, '*')
	for len(args) < n && err == nil {
		var size int
		size, err = readLength(in, '$')
		text := make([]byte, size+2) // with the end of the line
		if err == nil {
			_, err = io.ReadFull(in, text)
		}
		args = append(args, string(text[:size]))
	}
	if err == nil && n == 0 {
		err = errRESP
	}
	return args, err
}

func readLength(in *bufio.Reader, kind byte) (n int, err error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	n, err = strconv.Atoi(strings.TrimRight(line[1:], "\r\n"))
	if err != nil || line[0] != kind || n < 0 {
		return 0, errRESP
	}
	return n, nil
}

// appendAnswer appends an answer as it is sent.
func appendAnswer(to []byte, is any) []byte {
	switch v := is.(type) {
	case nil:
		return append(to, "$-1\r\n"...)
	case int64:
		return fmt.Appendf(to, ":%d\r\n", v)
	case status:
		return fmt.Appendf(to, "+%s\r\n", string(v))
	case RedisError:
		return fmt.Appendf(to, "-%s\r\n", string(v))
	case string:
		return fmt.Appendf(to, "$%d\r\n%s\r\n", len(v), v)
	case []any:
		to = fmt.Appendf(to, "*%d\r\n", len(v))
		for _, one := range v {
			to = appendAnswer(to, one)
		}
		return to
	}
	panic(fmt.Sprintf("BUG: the stand-in for Redis answers a %T", is))
}
