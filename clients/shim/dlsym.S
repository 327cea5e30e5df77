/* dlsym and dlvsym: decided in C (resolve.c), or handed on by a jump, so that the real one sees who called: RTLD_NEXT and
 * RTLD_DEFAULT mean something else for each caller. */
#if !defined(__x86_64__)
#error "dlsym.S is written for x86-64"
#endif

	.text

	.globl	dlsym
	.type	dlsym, @function
	.p2align 4
dlsym:
	.cfi_startproc
	endbr64
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	subq	$8, %rsp
	.cfi_adjust_cfa_offset 8
	movq	24(%rsp), %rdx			/* the caller */
	call	resolve_dlsym			/* (handle, name, caller): rax 1 when decided, then rdx */
	addq	$8, %rsp
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	testl	%eax, %eax
	jz	1f
	movq	%rdx, %rax
	ret
1:	movq	real_dlsym@GOTPCREL(%rip), %rax
	jmpq	*(%rax)
	.cfi_endproc
	.size	dlsym, .-dlsym

	.globl	dlvsym
	.type	dlvsym, @function
	.p2align 4
dlvsym:
	.cfi_startproc
	endbr64
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	pushq	%rdx
	.cfi_adjust_cfa_offset 8
	movq	24(%rsp), %rcx
	call	resolve_dlvsym			/* (handle, name, version, caller) */
	movq	%rdx, %rcx
	popq	%rdx
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	testl	%eax, %eax
	jz	1f
	movq	%rcx, %rax
	ret
1:	movq	real_dlvsym@GOTPCREL(%rip), %rax
	jmpq	*(%rax)
	.cfi_endproc
	.size	dlvsym, .-dlvsym

	.section .note.GNU-stack,"",@progbits
