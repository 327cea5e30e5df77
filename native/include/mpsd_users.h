/* SPDX-License-Identifier: MIT */
/*
 * mpsd_users.h: the group of a program that runs as another user.
 *
 * The number of a uid is that of some other group where the user's own group has another number, such as one that may open devices.
 */
#ifndef MPSD_USERS_H
#define MPSD_USERS_H

enum { MPSD_NO_GROUP = 0x7ffffffe }; /* the gid of no group, as REFUSER_UID (domains/refuser.py) is the uid of no user */

#endif
