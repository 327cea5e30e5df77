# One program that links nothing but libc.  Its Makefile sets PROGRAM, SOURCES, HEADERS and LINK (-static, or libraries).
#   make                            builds ./$(PROGRAM)
#   make SAN=address,undefined      builds build/san/$(PROGRAM), for the tests (dynamic)
CC ?= cc
SAN ?=
CFLAGS ?= -O2 -g
WARNINGS := -I../include -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wshadow -Werror -fvisibility=hidden

ifeq ($(SAN),)
OUT ?= $(PROGRAM)
MODE := -fstack-protector-strong -D_FORTIFY_SOURCE=2
else
OUT ?= build/san/$(PROGRAM)
MODE := -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer
LINK := $(filter-out -static,$(LINK))
endif

all: $(OUT)

$(OUT): $(SOURCES) $(HEADERS) Makefile ../program.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(WARNINGS) $(CPPFLAGS_EXTRA) $(MODE) -o $@ $(SOURCES) $(LINK)

clean:
	rm -rf build $(PROGRAM)

.PHONY: all clean
