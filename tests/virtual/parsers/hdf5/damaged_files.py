"""HDF5 files of a fuzzer that make HDF5 2.0 crash or loop forever, with no exception that Python could catch."""

import base64
import zlib
from typing import Final

_CRASHES: Final = (
    "c-rlo4}4Ws9l+0hZ+{-"
    "!kT)1?4A>rQzyt?~Gt3M(#=|YgSd0oQasMYa8N$T1GAEj0sbx`FS<+wDU&Sn^S!$7Dn)Y8U%4HUm{h66XMa}Ph_ni0cJM6ykf8aYmK3~qxIlp)"
    "Bx##?TzkBYz=UiX4blKR9{0w1BARtmiP`G7CO7>;(c~##aQ%j~>WZLIb<^D)ro-7Z_<L{F7RkD25%5Yc+U-bC;c^0HNsXES6XFBO>VI&!(DqK-"
    "#r+3Kw#WKw+bJA>SSGxUWi4tjtJ`v#G23enLo4d<yL;m5<Yl$>R$5MI60xioa7$@~q>ZjhWnM{2!V(;pwfyn=<q;}rtxP{0Rp~xRr^!RqYC0bh"
    "BIvTrLg*1Cgo%8yAzV1|~C`BG#US~t}I&;wNk>y_PQ0<r96iw~YzOl~VC0c$q)Yq<9YH<}M$`4Btk6TElyJjcWE0^iMIq~r%G*{M_#>bn%vl1U"
    "q#fkn|C#F5y@y=oh^>{bkL%(mDlg<#a!FS6eT75vPe_qy4i`q-"
    "Pj4g=IXGP<+5hF&77%^gGwB)?X6*ZRYhHPo|zUchZk;bOxxO|IBTaW!e_xwa}PpU_G+9<U%UF*ldD79nED4jP$yZ%g%@i}0=sO3)?rS^~WXs<q"
    "R&Gyh6KT7SMptUc@qkR)cseO~Q_T`RJJMy%4O!nxf{84J(6s>(zJ=!<zc(iZm!1fh*w5L#ej_hjf?s7k`tNV+5?I)&tl+W-"
    "eFY+ia_9&mJ#oxdgPO2W?mk8~L^Thm3k*l(_yP)NIavgHz?JF(1a7SwFU55K`O(OQr!(HB}jc;$j%teeCF=E7s5hKS(y4N(fH8iY#@KKR=TKTP"
    ";ceY<ww|;Tas;r0FeNCe0Ie&Hcn)4f_!qi~K<L&89ZN-b{2DgV^c)B-"
    "FY}x9+mqRp2jdRK$yJ6>^v}bdQ7tg+S^NaVOam7x5o9iU|?UU@ehLdbvVu?*J`F7ZIE%ha+K+a@UUd?V*eu|uNs{B+<KUdSw)AT26`uUoEP}9%"
    "W^v7%Z6EyuCOEMKS|CPRlYDX6KrZ83HR4BdnP^HS4FqZ^n=iuaS%F12cc7(KxeqT{zfUqIH8e4k~>Wo7%_5G#9ni8OxB_JoZ{&E5^IipWi+U"
    "@V9N>KAAz{L*Wq7(eqn5m;g(xYYWq+#qVduGajt)Y<=p9G{o&K?p)fXoc;)nm`VJNQ9<@HAI?L}|={nc3hO;5Hjw~o*YstDrY&L5zW6F~HY6g`"
    "ZDwMORkjM>)+^Z7WVXf@<yR<7?aE$yV82LLGP##jQ`H5~9zL0SFQ%ts<B=OXWTbHWV59;g9oOP*|=epGH1;a-"
    "RBgr9ZUFvF=@7vN)8n36;t9EElS>;DyzrJDYcc3&rOpIi|51c-"
    "{7aK`V`&Dr)q}^uLYIa+7gy(hE5&NQc*IycceBF+N2dS5A;`E~x?Z>^R8k;`6csk|~=Zl9rU&@g4rT7K&S<-OreFpaagvy$V`g-"
    "BKu?)KGd};OaaBY3{irS0nD=TWku6+%uk>Ax;EDsC$JNH-"
    "c%cFiR=QoRF+>f>(@yunTN*6k5=eo$U0?{VRn^k>hTV(yfeEEZR?fjcmDi=U>^c>xIGSWVc1IN#KKFkiC8y&y0Oi?!E7bA@0LXUB*ljj{rkLJ0"
    "?tEResmGeg1{j8wcWodEM{l<3Y5d=0TE~G`{g4g~Q-"
    "3t0<Ce~A}QS%7(mRR48p~h3K<M5I?neHk}tf%fz1B;GtT*wmr(Q)l!Tvvvdg;$1aE5mYJC;6PdYiaCi+}PSR;_=k@x2(Oib=}6bo$5Jrr1_V94"
    ")yFP64;O4kB7T|X+*#9E5C3oC&jO<c9wk45PQD7`o8^_2+@0j#QDVi(JvQ3s&vFSFZ&^rc;Md0C9Vua_C9v>IFZsGyHx51=Be?H?&lI`J4L%w<"
    "IJGpxb%m!59z>tmz}vD{x26|ZODx^+AX(T5T94|=J~>i5hF&77&)1rlkJI|)tknoVOzTJLkgrq8l*!2#y|#SLKcjLQ(znfAsfcS1jvDjFbQ%Y4"
    "<<uCOo6E|4GN$TLNFa>KoJzfOqd0;p#)BaIWQMagHo6W^I-"
    "v;4h!K7D1$TMRj>%of>*=Y@ESM=UJHxiTquVMSOS%>6vD6!&VwqbhS$OQPy@@M7FIwVydG9UJ*<K^z#HLBuo^CaH^W=tt#Bc%fs3F48lefAp#@"
    "r@4cg&iSPPfH+n@t3g>}#g>)|rk02`qTE{9EU1$4vPp$Fap?}RJiU2qlj!qu=Du7PXe-EbYe2e!cV@LqTy+yFPiP4IsB0Ne~8gb%@1_%M6~J_@"
    "(M$Kd1e3AhzL37>-"
    "7U>kfIJ_DbH&%x*63$Pvf;EV7j_%eJ2z6xK1+u;t_0e8aJ;V$?Fd=u`5ez*tjg>S)q@NM`G+z$`HgYaGW9_)ng!$a^e?1D$&2k<C720w(y;R*N"
    "={1|=$KZT#c&*2yFBs>LA!!O}iup532zkz390DcS4!tdZY_&xjq_P}2FBm4=Thd;w#;IHsE7=#z#@9-"
    "l0173oE!oOf2{2TrQ|AqbVKlnckZA*W6pRoFb@qXj|N6q_hHr{`-c>fcF!n%E*@qXj|=H8!t-"
    "v8uYVck7wyx(}g@&4rV{$~b+b^l)D{l@!^_a~qC`$Ve!P0}J~B7lhiCITGe2+)vjZ_U^pak>*I3|JzqvA{B6z=Q!429k3kV2SkYL&p7$`y2O9P"
    "WKNO_c!iu+&@{}e~fW|<Nn6|lhyq*jQbn+H}0RT?w@Jg-?;xP)BPiF++PNC)>Cr"
)
_HANGS: Final = (
    "c-rlo3tSXM9LHzxI5+|IP!vRk6Hrk@O)1SxK|F;-"
    "B(c&Sdc4&LR7i<3NzJtEZDnO?PwAayMK86oqB8Am4=XB7deg(Avgo(BGkbd@dx!YAlbgSvufxp#Z+CX)|NrlQcV}0mjUCrMI4YRPVm6ZiVj)^-"
    "q7pXOwa&KNX(`ciIW4OVtlj9?7D?MJbpN$<dm3$@GTCM$#Gvk<KhEF)rDXg0=me#lN`&~FY&!hAOtYnA$>n3TK9iP_NlF<;?TWX*P?A9H&_K-i"
    "H;-<Qkj-6Vw^n2G$CXH+q9d`oVu6yRG<2kTtTbY~yrmnqTO9Vzerk67Z$c^84T@Wk5Mp)wA*uV9w@W0yps+Znyns-"
    "%N2_vNqrp&NQknwj?&*2j)$<I8ZY6Ek>j&#U9VWGuTdUhEe<yJDz92hu(pU*+k-"
    "+>g!Tr2hX<6IXy<Rdc8~eM)6YBuFJ<&DZGz@pYKNcry`uL`c$nj3X6!P(|myUjQPo<0{&dJxx>)duTxBYv%y{Bp~uF^i*wH~U*YoC;zBFG96B1"
    "DJ~e~|I1lQJaD1zF;@8`S($k(}H-mwG-c3y%ChZGOV{$E4F9=%s!JapP$AQa{>x>A1n%`G@Gt&jI-"
    "&SMT7Z{&&>rFQ2!D>F9OxQolQM{R`LWUl%X+uPfKT2ru;`lIuq|opFltQvbSh{p+FAzn)&|U$jntVz~Rr@`8$T?fp8tzR<^hq?b;6tWJBJPJ6s"
    "gdv99Svp76dDcSA&7{dK<AQ?2@aaIy{6_hl0u9BuMpK08=8%)k;8QR_D66Z4yZF>$kzg1?DiyR};B!)nU5FtJ<RbmKyTJpT#g^KBUg?9VY7vCg"
    "-$0e^>ytQaq)|^psQ$k-YGUSrV-Ny8a=@W9OLJv#u_M)KN!uU}GEbFbmd|VYtmaj5Ci(S~M#>nJtE4S_q{3<+tRNtkGe|rWR3$_{yH3!)*A7t+"
    "m9AwoPiOk<;*dXUx>`hQK&16}fWw)%}oo1Y@-h<PR;PfLo{cfCo6sK?D^usv)PMm&cPCuN}@51SKrTHSO$2c;<+&oWc-"
    "<HXlbaQVNwK~08pcC5yowye0#JkaHuFgME3J`HXh!8)O!D0x!D)O3(BeD*~pfs!NOQinvkx>KJgXKOx9%h%TSL@F|D#n>(Xl3;=Z67Qn>ZFd3a"
    "{iqq<x1}y4+C!xG0yy<?TiO|59NFxHOHaa$EciXiDqBT*$`VtW+BeCWEI4j&C1J|La9E>pu(&%G>fv52s4RT<kk)|>9}t^ERoo=zgQf9Tg=Quk"
    "~u%&?ZRLs8h>)ix??1sN-pbC+4@0#y_vEuRnlFTS~0l!Xwg<ASzLPE3R{;tRpa}z*b`m#*m~7s?k+3&5bW2`jQ!Rnx`qi)_Pgcy=Dk>mf7&mLV"
    "^;1mGmEp^v_m|uvX0oG+Febe>;8E=wzN>s-"
    "$WTlNgc=fe!`|(7f;(AWWIQ?`BE^=ms}Ujhf>3pzcY}(Pe{#3$<8Lq6HAN6&c~)tv}I<ePs*H;otlzi(|p%pa{MkcWulGH-"
    ")Y~1U!eLm&2NU$xUcrWedbce${|WwTH;t%KniI)do*5FTIg6mFo^!3h&%p#R?-C!#g&IQo_P9B<G}e-?hnJPqt*FK3L!~NM&e-"
    "}hv>{>7Cml9jA*20zB1CYrzlUfwf73FUlJErwNGq&A3|VL;zFPr7xcbw;jN&$cgvmwu{?r3CFVcJVDrh=ap*}FEo+n9>#^%o-"
    "LRt@7eYymI<MuJ*U7eVw#l~4R2!Ywt_Ef7@^i{_$_mOo?vKrX{;cy0O3G%HvinR=`ImeQcJD~s*bhIBt^Iz<qhA=AUnrInU}RR?hdyU;-"
    "e2x{e*bJ=dCBQ%JZk6yNLG4`^K=|S5D&E9agl{)$G4Bgl}e<P=gx#}bpzRatKV~x5lYi8lZzSHkIHx`-yt3N-"
    "DPQnj{nnzSo0#Boz}|QX|8p)UEE&?X}y$)ArK-&h>)W%wXXS-oXAO4fk+zG1rZ|%045L!f`A#c1Hm8!go5^<1Lz1WAPjT@ok2M00=j|-"
    "5DB`0D9|1B06jr8hyhm63&esr5D$8TKA<m10R2FJFaR6}62U+)2n+_tgCU>^B!LsaiC`EQ4o(6iz{y}FI0cLXqd_uA0b@Wa7z=D*92gJMKsq=T"
    "OaK{RBFF@jKo&R+Oa|Ft3OF5{0nP+d!8C9dI2)V;&IQxK3}6R2AQ$9;d{6)iK@pe<W`Wt@JWveI2PL2s%mH)3JWvM8!3AJGSO6-"
    "(g`g5#1TF>(!6jf3r~;RQ#b60o3N8c7z~x{$SOKm8SAvz`DsVNp23!lS1J{Eaz$$PfxCz`0R)br>t>8AW2HXzr0BgZIa3{D6+zsvl_k#PtdQc7"
    "S2M>S;!9(C-@CbMmJO(y^$H5a|BX|-#1)c^q;2H2Ncn&-"
    "dUI3fGX0Qdk2wnm&gRS5d@G5u>)PmQ+8{kc_4ZH=mgB{>)@D6wvya(O~AAk?RPVf=<7<>Xg1-"
    "rm!;B)W=r~_YuufW$}H`oKd0ee9`_!fKzz6U>mAHh%HXV3tC0l$LZ!0%um_yhb28o^)SZ}1P;5B>%JDgN?WBax~}oACaj!uy5y3-"
    "3P|@88itq(>Wt_xqUl|0}#-c>j_2{+;zidb&Y)zqs}b@Ap6N|Dujao9l)53-"
    "1@+?|<HJASU^pq=cG?03rgkI07_@2+*nsU=NZ%&DiB|Iv)xH5(&(SmP8m3VL&7T{+S3!Bxrq;aQ|b*{Y!-V3-"
    ">>q?r#?EFRuQ={r%Pb+X?p<?l0WmU)?`gxW5PYZxZe=+`p~5e~55@arJMT?(cZw{y%q2S_l"
)


def unpack(text: str) -> bytes:
    """Return the bytes of a file."""
    return zlib.decompress(base64.b85decode(text))


CRASHES: Final = unpack(_CRASHES)
"""Reading it ends the process with SIGSEGV."""
HANGS: Final = unpack(_HANGS)
"""Reading it never ends."""
